#!/bin/sh
# Print the test directories and files of everything that differs from $BASE (default: main), for `make test-changed`.
# tests/ mirrors the source tree: mcpd/gateway/… is tested by tests/gateway, ctl/… by tests/ctl.
cd "$(dirname "$0")/.." || exit
{
  git diff --name-only "$(git merge-base "${BASE:-main}" HEAD)"
  git ls-files --others --exclude-standard
} | while read -r file; do
  case $file in
    tests/*/test_*.py | tests/test_*.py) echo "$file" ;;
    tests/*/*) dirname "$file" ;;
    mcpd/*/*) echo "tests/$(echo "$file" | cut -d/ -f2)" ;;
    ctl/bridge/*) echo tests/bridge ;;
    ctl/*) echo tests/ctl ;;
    mcpd/*) echo tests/supervision tests/e2e/test_everyday.py ;;
    docs/* | man/* | README.md | CHANGELOG.md | Makefile) echo tests/test_docs.py ;;
  esac
done | tr ' ' '\n' | sort -u | while read -r path; do
  [ -e "$path" ] && echo "$path"
done
echo tests/test_architecture.py
