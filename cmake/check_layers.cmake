# cmake -DSOURCE=DIR [-DSTAMP=FILE] -P check_layers.cmake: fails where an include of libprobe goes
# upward, or from one of rewrite, verify and process to another. Files of the folder libprobe itself
# (error.hpp) are below all.
cmake_minimum_required(VERSION 3.25)

# By height.
set(heights
  elf 1 notes 2 code 3 plan 4 deps 5 probes 6 tracers 7 audit 8 process 9 rewrite 9 verify 9
  facade 10)

function(height_of folder result)
  list(FIND heights "${folder}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "libprobe/${folder} has no place among the layers (check_layers.cmake)")
  endif()
  math(EXPR at "${at} + 1")
  list(GET heights ${at} height)
  set(${result} ${height} PARENT_SCOPE)
endfunction()

# The folder below libprobe that holds the file, "" for libprobe itself.
function(folder_of path result)
  set(${result} "" PARENT_SCOPE)
  if(path MATCHES "^libprobe/([^/]+)/")
    set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  endif()
endfunction()

file(GLOB_RECURSE files RELATIVE "${SOURCE}" "${SOURCE}/libprobe/*.cpp" "${SOURCE}/libprobe/*.hpp")
set(wrong)
foreach(file IN LISTS files)
  folder_of("${file}" from)
  set(height 0)
  if(from)
    height_of("${from}" height)
  endif()
  file(STRINGS "${SOURCE}/${file}" includes REGEX "^[ \t]*#[ \t]*include[ \t]*[\"<](libprobe|tool|reprobe)/")
  foreach(include IN LISTS includes)
    string(REGEX REPLACE "^[^\"<]*[\"<]([^\">]*)[\">].*$" "\\1" path "${include}")
    if(path MATCHES "^tool/")
      string(APPEND wrong "\n  ${file} includes ${path}")
      continue()
    endif()
    # What is installed, and includes all it needs.
    if(path STREQUAL "reprobe/reprobe.hpp")
      set(path "libprobe/facade/reprobe.hpp")
    endif()
    folder_of("${path}" to)
    if(NOT to OR to STREQUAL from)
      continue()
    endif()
    height_of("${to}" other)
    if(other GREATER_EQUAL height)
      string(APPEND wrong "\n  ${file} includes ${path}")
    endif()
  endforeach()
endforeach()
if(wrong)
  message(FATAL_ERROR "includes that do not go down:${wrong}\n")
endif()
if(STAMP)
  file(TOUCH "${STAMP}")
endif()
