# Run by reprobe_postlink() with cmake -P: REPROBE (the tool), FILE (the linked file) and STEPS
# ("fix", "audit" or "fix,audit").
#
# make and ninja both keep the file of a link whose later command failed, and make then takes it
# for up to date. Hence this script removes it.
cmake_minimum_required(VERSION 3.16)

string(REPLACE "," ";" STEPS "${STEPS}")
foreach(step IN LISTS STEPS)
  if(step STREQUAL "fix")
    set(command "${REPROBE}" fix --in-place "${FILE}")
  else()
    set(command "${REPROBE}" audit "${FILE}")
  endif()
  execute_process(COMMAND ${command} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    file(REMOVE "${FILE}")
    list(JOIN command " " command)
    message(FATAL_ERROR "'${command}' failed: ${result}; the linked file was removed")
  endif()
endforeach()
