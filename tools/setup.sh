#!/usr/bin/env bash
# Make a working copy ready: prerequisites, .venv, the locked libraries and jars, the compiled kernel.
#
# Strategy: each stage leaves a stamp that holds a checksum of what it was made from; a stage whose stamp fits is skipped, so a
# second run takes a moment. Only the first stage touches the system, and only on Debian as root; elsewhere it says what to install.
# It needs nothing but bash and POSIX tools, because nothing else may be there yet.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VENV=.venv
readonly PYTHON=$VENV/bin/python
readonly UV=$VENV/share/uv/bin/uv

main() {
    require_prerequisites
    once "$VENV/.made" make_venv tools/setup.sh tools/bootstrap.txt
    once "$VENV/.installed" install_libraries requirements.txt pyproject.toml "$VENV/.made"
    "$PYTHON" -m tools.jars sync # looks at the files themselves; a moment if they are there
    forget_if_older "$VENV/.compiled" writetime/kernels writetime/cassandra
    once "$VENV/.compiled" compile_kernel "$VENV/.installed" writetime/kernels/*.py writetime/cassandra/{,commitlog/,merge/,types/}*.py
    once var/cache/.prepared prepare_airflow "$VENV/.installed"
}

# once <stamp> <command> <input file>…: run the command unless the stamp says that it ran with just these inputs.
once() {
    local stamp=$1 command=$2 sum begun=$SECONDS
    shift 2
    sum=$(cat -- "$@" | cksum)
    if [[ -f $stamp && $(<"$stamp") == "$sum" ]]; then
        return
    fi
    echo "▸ ${command//_/ } …"
    "$command"
    mkdir -p "$(dirname "$stamp")"
    echo "$sum" >"$stamp"
    echo "✓ ${command//_/ }: $((SECONDS - begun)) s"
}

# forget_if_older <stamp> <folder or file>…: drop the stamp if a source is younger. The compiler's own cache goes by time, not by content.
forget_if_older() {
    if [[ -f $1 && -n $(find "${@:2}" -name '*.py' -newer "$1" -print) ]]; then
        rm "$1"
    fi
}

# ---------------------------------------------------------------------------------------------------------- prerequisites

require_prerequisites() {
    local packages
    packages=$(missing_packages)
    if [[ -z $packages ]]; then
        return
    fi
    if may_install; then
        install_packages "$packages"
        packages=$(missing_packages)
    fi
    if [[ -n $packages ]]; then
        explain "$packages"
        exit 1
    fi
}

# Debian, and the right to: nowhere else is a package installed unasked.
may_install() {
    [[ -f /etc/debian_version && $(id -u) == 0 ]]
}

# Debian's names of what is not there.
missing_packages() {
    local missing=()
    if [[ -z $(find_python) ]]; then
        missing+=(python3.11 python3.11-venv)
    elif ! "$(find_python)" -c 'import ensurepip, venv' 2>/dev/null; then
        missing+=(python3.11-venv)
    fi
    has_jdk || missing+=(openjdk-17-jdk-headless)
    command -v mvn >/dev/null || missing+=(maven)
    echo "${missing[*]-}"
}

install_packages() {
    echo "▸ apt-get install $1 …"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 - a list of package names
    if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends $1 </dev/null >/dev/null; }; then
        echo "✗ apt-get could not install them (see above)." >&2
    fi
}

explain() {
    local package
    echo "These are missing; install them and run this again:" >&2
    for package in $1; do
        case $package in
            python3.11) echo "  Python 3.11   (Debian: python3.11; macOS: brew install python@3.11; or pyenv install 3.11)" >&2 ;;
            python3.11-venv) echo "  Python's venv (Debian: python3.11-venv; comes with Python elsewhere)" >&2 ;;
            openjdk-*) echo "  JDK 17        (Debian: openjdk-17-jdk-headless; macOS: brew install openjdk@17; or point JAVA_HOME at one)" >&2 ;;
            maven) echo "  Maven 3       (Debian: maven; macOS: brew install maven)" >&2 ;;
        esac
    done
}

find_python() {
    local candidate
    for candidate in python3.11 python3 python; do
        if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
}

# The same places as tools/java.py looks at.
has_jdk() {
    local folder
    for folder in "${JAVA_HOME:-/nonexistent}" /usr/lib/jvm/*17* /Library/Java/JavaVirtualMachines/*17*/Contents/Home "$(java_on_path)"; do
        if is_jdk "$folder"; then
            return 0
        fi
    done
    return 1
}

is_jdk() {
    grep -qs '^JAVA_VERSION="17' "$1/release"
}

java_on_path() {
    local program
    program=$(command -v java) || return 0
    dirname "$(dirname "$(readlink -f "$program")")"
}

# ----------------------------------------------------------------------------------------------------------------- stages

make_venv() {
    "$(find_python)" -m venv --clear "$VENV"
    # uv and setuptools, apart from the libraries, so that bringing those to the letter of requirements.txt leaves them alone.
    "$PYTHON" -m pip install -q --disable-pip-version-check --require-hashes --no-deps --target "$VENV/share/uv" -r tools/bootstrap.txt
}

install_libraries() {
    use_pip_settings
    "$UV" pip sync -q --python "$PYTHON" --require-hashes requirements.txt
    # Without isolation: a build environment of uv's own would fetch setuptools without its hash.
    PYTHONPATH=$VENV/share/uv "$UV" pip install -q --python "$PYTHON" --no-deps --no-build-isolation --editable .
}

# uv does not read pip's configuration; a package index or certificate that pip was given is meant for it too.
use_pip_settings() {
    local index
    index=${PIP_INDEX_URL:-$("$PYTHON" -m pip config get global.index-url 2>/dev/null || true)}
    if [[ -n $index && -z ${UV_DEFAULT_INDEX:-} ]]; then
        export UV_DEFAULT_INDEX=$index
    fi
    local certificate
    certificate=${PIP_CERT:-$("$PYTHON" -m pip config get global.cert 2>/dev/null || true)}
    if [[ -n $certificate && -z ${SSL_CERT_FILE:-} ]]; then
        export SSL_CERT_FILE=$certificate
    fi
    export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180}
}

compile_kernel() {
    # Machine code of sources that have changed since is never used, but it would lie about.
    find writetime -name '*.nb[ci]' -delete
    # A fresh process would compile the compiler's own sources first, each time if it may not write them down.
    "$PYTHON" -m compileall -q "$VENV"/lib/python3*/site-packages/{numba,llvmlite}
    "$PYTHON" -m writetime.kernels.segment_walk
    "$PYTHON" -m writetime.kernels.mutation_buffers
    "$PYTHON" -m writetime.kernels.merge
    "$PYTHON" -m writetime.kernels.clustering_keys
    "$PYTHON" -m writetime.kernels.json_text
    "$PYTHON" -m writetime.kernels.avro_data
}

prepare_airflow() {
    "$PYTHON" -m tools.services.airflow
}

# Tests source this file for its functions.
if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
    main "$@"
fi
