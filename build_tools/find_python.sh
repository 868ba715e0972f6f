#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints the newest Python found, from 3.8 on, that can make an environment; with --all, one for
# each version, newest first. It searches PATH and the versions of pyenv.
all=$({
    IFS=:
    for folder in $PATH; do
        ls "$folder"/python3 "$folder"/python3.[0-9] "$folder"/python3.[0-9][0-9] 2>/dev/null
    done
    unset IFS
    ls "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3 2>/dev/null
} | while read -r python; do
    # Debian has ensurepip, a part of venv, in a separate package.
    "$python" -c '
import sys, venv, ensurepip
if sys.version_info >= (3, 8) and sys.version_info.releaselevel == "final":
    print("%d.%d" % sys.version_info[:2], sys.executable)' 2>/dev/null
done | sort -r -V | awk '!seen[$1]++ { print $2 }')

if [ -z "$all" ]; then
    echo "gluon_roi needs Python 3.8 or newer with its venv module: run 'apt-get install" \
        "python3-venv', or make PYTHON=/path/to/python3" >&2
    exit 1
elif [ "$1" = --all ]; then
    echo "$all"
else
    echo "$all" | head -n 1
fi
