# shellcheck shell=bash
# The environment that scripts/test and scripts/demo run in. Sourced by them, never run.
#
# prepare_environment runtime|test   makes or reuses a virtual environment with this checkout (editable) and what it
# needs, and sets `environment` to its directory: .venv in the checkout, or where VIME_SYNC_VENV says. It is brought
# up to date only when pyproject.toml, the checkout's place or the environment's own place changed.

root=$(cd -- "$(dirname -- "$(realpath -- "${BASH_SOURCE[0]}")")/.." && pwd -P)

say() {
    printf '%s\n' "$*" >&2
}

fail() {
    say "${0##*/}: $*"
    exit 1
}

find_python() {
    local candidate
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        if command -v "$candidate" >/dev/null &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    fail "no Python 3.10 or later found as python3 or python3.N; install one and run this again"
}

# What the environment was made for: anything else here means installing again.
environment_wanted() {
    cksum <"$root/pyproject.toml"
    printf '%s\n%s\n' "$root" "$environment"
}

environment_is_current() {
    local stamp=$environment/vime-sync-$1.stamp
    [[ -x $environment/bin/python && -f $stamp && $(<"$stamp") == "$(environment_wanted)" ]]
}

make_environment() {
    local kind=$1 python target=$root
    python=$(find_python)
    [[ $kind == test ]] && target="${root}[test]"
    if [[ -e $environment && ! -f $environment/pyvenv.cfg && -n $(ls -A -- "$environment") ]]; then
        fail "$environment holds other things than a virtual environment; point VIME_SYNC_VENV elsewhere"
    fi
    say "Making the environment in $environment ($("$python" --version)); the first time takes a minute."
    rm -f -- "$environment"/vime-sync-*.stamp
    # One whose interpreter or pip is gone, or that was made for another place, is made anew.
    if ! "$environment/bin/python" -m pip --version >/dev/null 2>&1 ||
        ! grep -qsF -- "$environment/bin" "$environment/bin/pip"; then
        "$python" -m venv --clear -- "$environment" ||
            fail "python3 -m venv failed: on Debian and Ubuntu install the package python3-venv, then run this again"
    fi
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$target" ||
        fail "pip could not install what the checkout needs (see above)"
    environment_wanted >"$environment/vime-sync-$kind.stamp"
}

prepare_environment() {
    local kind=$1
    environment=$(realpath -m -- "${VIME_SYNC_VENV:-$root/.venv}")
    # Nothing installed elsewhere may leak in: what passes here must pass on a fresh machine.
    export PYTHONNOUSERSITE=1
    unset PYTHONPATH PYTHONHOME
    if environment_is_current test || environment_is_current "$kind"; then
        return
    fi
    # Two scripts started at once take turns; the lock goes with the descriptor.
    exec 9<"$root/pyproject.toml"
    if command -v flock >/dev/null; then
        flock 9
    fi
    if ! environment_is_current "$kind"; then
        make_environment "$kind"
    fi
    exec 9<&-
}
