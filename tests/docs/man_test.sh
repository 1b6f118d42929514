#!/bin/bash
# man_test.sh REPROBE: the man pages are sound to two formatters, and say all that --help says.
set -uo pipefail
reprobe=$(realpath "$1")
here=$(cd "$(dirname "$0")/../.." && pwd)
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory" || exit 1
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
for tool in man mandoc python3; do
  command -v "$tool" >/dev/null || { echo "FAILED: no $tool, though scripts/packages names it"; exit 1; }
done

python3 "$here/docs/man/make_pages.py" "$reprobe" "$here/include/reprobe/rt.h" pages || exit 1
python3 "$here/docs/man/make_pages.py" "$reprobe" "$here/include/reprobe/rt.h" again || exit 1
diff -r pages again || fail "two runs write the same pages"
# What a page says, as words, however its lines are broken.
words() { tr -s '[:space:]' '\n' | sed 's/\.$//' | sort -u; }
shown() { mandoc -Tascii -O width=1000 "$1" | sed 's/.\x08//g'; }
for page in pages/*; do
  # A page that is made by every build has no date.
  lint=$(mandoc -Tlint -W warning "$page" | grep -v "missing date")
  [ -z "$lint" ] || fail "$page: mandoc: $lint"
  said=$(man --warnings -l -Tutf8 -Z "$page" 2>&1 >/dev/null)
  [ -z "$said" ] || fail "$page: groff: $said"
done
for command in "" $("$reprobe" --help | sed -n '/^Subcommands:/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
  page=pages/reprobe${command:+-$command}.1
  # shellcheck disable=SC2086
  "$reprobe" $command --help | grep -v '^[A-Z][A-Za-z ]*:$' | sed 's/^Usage: //; s/^Exit: //' | words >help
  shown "$page" | words >page
  # The summary begins with a small letter behind NAME.
  missing=$(comm -23 help page | grep -v '^Audits$')
  [ -z "$missing" ] || fail "$page lacks: ${missing//$'\n'/ }"
done
shown pages/reprobe-rt.3 | words >page
for name in $(grep -oE '\breprobe_rt_[a-z_]+\(' "$here/include/reprobe/rt.h" | tr -d '(' | sort -u); do
  grep -qE "\b$name\b" page || fail "reprobe-rt(3) lacks $name"
done
echo "$failures checks failed"
[ "$failures" -eq 0 ]
