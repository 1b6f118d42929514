#!/bin/sh
# decoders_test.sh DECODERS: both decoders read every instruction of libc alike, or the planner
# refuses it by name. By hand: decoders FILE... for larger files.
file=/lib/x86_64-linux-gnu/libc.so.6
if [ ! -e "$file" ]; then
  echo "SKIP: no x86-64 libc"
  exit 77
fi
exec "$1" "$file"
