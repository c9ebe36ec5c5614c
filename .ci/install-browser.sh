#!/usr/bin/env bash
# A headless Chromium for the tests of pages. Where none can be had, those tests are skipped and say so.
set -uo pipefail

for name in chromium chromium-browser google-chrome google-chrome-stable; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "no Chromium, and no way to install one: tests of pages will be skipped" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -y -q --no-install-recommends chromium; }
{ install || { apt-get update -q && install; }; } >/dev/null || echo "Chromium could not be installed: tests of pages will be skipped" >&2
