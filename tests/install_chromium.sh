#!/bin/sh
# Installs Debian's Chromium for the browser test where it is absent and that is possible; elsewhere the test skips.
for browser in chromium chromium-browser google-chrome; do
  if command -v "$browser" >/dev/null; then exit 0; fi
done
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "no Chromium here and no right to install it: the browser test will skip"
  exit 0
fi
patience="-o Acquire::Retries=2 -o Acquire::http::Timeout=30 -o DPkg::Lock::Timeout=120"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 (each option is a word of its own)
if apt-get $patience update -qq >/dev/null && apt-get $patience install -y -qq --no-install-recommends chromium >/dev/null; then
  echo "installed Debian's Chromium for the browser test"
else
  echo "Chromium could not be installed: the browser test will skip"
fi
