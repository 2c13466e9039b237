"""Airflow's pages as a person sees them: headless Chromium that logs in, reads and clicks. For tests; knows
no DAG."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tools import chromium

T = TypeVar("T")

SECONDS = 60
_OPTIONS = (
    "--headless=new",
    # Nothing but our own pages is loaded, and root has no sandbox.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1400,1000",
)


class Browser:
    """One window. What is looked for may take a while to come; an AssertionError has what was there
    instead."""

    def __init__(self, driver: webdriver.Chrome, url: str, pictures: Path) -> None:
        self._driver, self._url, self._pictures = driver, url, pictures

    def log_in(self, user: str, password: str) -> None:
        self._driver.get(f"{self._url}/auth/login")
        self._wait(lambda: self._shown("//input[@name='username']"), "the form to log in").send_keys(user)
        self._shown("//input[@name='password']").send_keys(password)
        self.click("Sign in")
        self._wait(lambda: "/auth/login" not in self._driver.current_url, "being logged in")

    def open_task(self, dag: str, run: str, task: str, map_index: int) -> None:
        self._driver.get(f"{self._url}/dags/{dag}/runs/{quote(run, safe='')}/tasks/{task}/mapped/{map_index}")

    def open_run(self, dag: str, run: str) -> None:
        self._driver.get(f"{self._url}/dags/{dag}/runs/{quote(run, safe='')}")

    def open_page(self, path: str) -> None:
        self._driver.get(f"{self._url}/writetime/{path}")

    def painted(self) -> float:
        """Milliseconds from when the page was asked for to its first paint with contents."""
        script = "const found = performance.getEntriesByName('first-contentful-paint')[0]; return found ? found.startTime : null"
        return float(self._wait(lambda: self._driver.execute_script(script), "a paint"))

    def open_menu(self, entry: str) -> None:
        """Go to a plugin's page as people do: by Airflow's menu, which shows it in a frame. What follows is
        in that frame."""
        self._driver.get(self._url)
        self._wait(lambda: self._followed(entry), f"`{entry}` in the menu")
        self._driver.switch_to.frame(self._wait(lambda: self._shown("//iframe"), "the page's frame"))

    def leave_frame(self) -> None:
        self._driver.switch_to.default_content()

    def theme(self, name: str) -> None:
        """`dark` or `light`, as Airflow's own switch leaves it behind."""
        self._driver.execute_script("localStorage.setItem('theme', arguments[0])", name)

    def fill(self, name: str, text: str) -> None:
        """Write into the field of that name."""
        field = self._wait(lambda: self._shown(f"//input[@name='{name}']"), f"a field `{name}`")
        self._driver.execute_script("arguments[0].value = arguments[1]", field, text)

    def follow(self, label: str) -> None:
        """Click the link of that label."""
        self._wait(lambda: self._followed(label), f"a link `{label}`")

    def background(self) -> str:
        """The colour behind the page, as `rgb(…)`."""
        return str(self._driver.execute_script("return getComputedStyle(document.body).backgroundColor"))

    def see(self, text: str) -> None:
        """Wait until the page shows the text."""
        self._wait(lambda: text in self._driver.find_element(By.TAG_NAME, "body").text, f"`{text}`")

    def click(self, label: str) -> None:
        """Click the button of that label, as soon as it can be."""
        self._wait(lambda: self._clicked(label), f"a button `{label}`")

    def picture(self, name: str) -> None:
        """Keep what is shown."""
        self._pictures.mkdir(parents=True, exist_ok=True)
        self._driver.save_screenshot(str(self._pictures / f"{name}.png"))

    def _clicked(self, label: str) -> bool:
        button = self._shown(f"//button[normalize-space(.)='{label}' or @aria-label='{label}']")
        if not button or not button.is_enabled():
            return False
        button.click()
        return True

    def _followed(self, label: str) -> bool:
        link = self._shown(f"//a[normalize-space(.)='{label}' or @aria-label='{label}']")
        if link is None:
            return False
        link.click()
        return True

    def _shown(self, path: str) -> WebElement | None:
        """The last of the elements that can be seen: a dialog's come after the page's."""
        return next((found for found in reversed(self._driver.find_elements(By.XPATH, path)) if found.is_displayed()), None)

    def _wait(self, condition: Callable[[], T], what: str) -> T:
        try:
            return WebDriverWait(self._driver, SECONDS, ignored_exceptions=[StaleElementReferenceException]).until(lambda _: condition())
        except TimeoutException:
            self.picture("what-was-there")
            there = self._driver.find_element(By.TAG_NAME, "body").text[:3000]
            raise AssertionError(f"{what} did not come at {self._driver.current_url}; there was: {there}") from None


@contextmanager
def browsing(url: str, folder: Path, pictures: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in the folder; screenshots go to `pictures`."""
    program, driver_program = chromium.need()
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for option in (*_OPTIONS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(option)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_program))
    try:
        yield Browser(driver, url, pictures)
    finally:
        driver.quit()
