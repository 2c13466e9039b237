// Airflow shows this page in a frame of its own origin and keeps its theme in localStorage; without that, the browser's choice holds.
"use strict";

function theme() {
  let chosen = null;
  try {
    chosen = localStorage.getItem("theme");
  } catch (error) {
    return; // storage is switched off
  }
  if (chosen === "dark" || chosen === "light") {
    document.documentElement.dataset.theme = chosen;
  } else {
    delete document.documentElement.dataset.theme;
  }
}

// A link out of this page belongs into Airflow's own window, and a framed page may not send that away: Airflow's document follows it itself.
function follow(event) {
  const link = event.target.closest("a[data-top]");
  if (link === null || window.parent === window) return;
  event.preventDefault();
  const there = window.parent.document.createElement("a");
  there.href = link.href;
  window.parent.document.body.append(there);
  there.click();
  there.remove();
}

theme();
window.addEventListener("storage", theme);
document.addEventListener("click", follow);
