# reprobe_postlink(TARGET [FIX] [AUDIT])
#
# Runs reprobe on TARGET after each of its links, as part of the link step:
#   FIX    reprobe fix: repairs the file in place
#   AUDIT  reprobe audit: findings fail the build
# Both: fix, then audit. None: FIX. TARGET is an executable, a shared library or a module of the
# calling directory. Where the tool fails, the build fails and the linked file is removed, so that
# no file without the step is left and the next build links again. TARGET is linked again when the
# tool itself changes (Ninja and Makefile generators).
# Needs CMake 3.17.

function(reprobe_postlink target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "FIX;AUDIT" "" "")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "reprobe_postlink(${target}): unknown argument "
                        "'${arg_UNPARSED_ARGUMENTS}'; expected FIX, AUDIT or nothing")
  endif()
  if(NOT TARGET ${target})
    message(FATAL_ERROR "reprobe_postlink(${target}): there is no such target")
  endif()
  get_target_property(imported ${target} IMPORTED)
  get_target_property(aliased ${target} ALIASED_TARGET)
  if(imported OR aliased)
    message(FATAL_ERROR "reprobe_postlink(${target}): an imported or alias target is not linked "
                        "here; name the target that add_executable() or add_library() made")
  endif()
  get_target_property(type ${target} TYPE)
  if(NOT type MATCHES "^(EXECUTABLE|SHARED_LIBRARY|MODULE_LIBRARY)$")
    message(FATAL_ERROR "reprobe_postlink(${target}): the target is of type ${type}; expected an "
                        "executable, a shared library or a module")
  endif()

  set(steps "")
  if(arg_FIX OR NOT arg_AUDIT)
    list(APPEND steps fix)
  endif()
  if(arg_AUDIT)
    list(APPEND steps audit)
  endif()
  list(JOIN steps "," steps)

  add_custom_command(TARGET ${target} POST_BUILD
    COMMAND "${CMAKE_COMMAND}" "-DREPROBE=$<TARGET_FILE:reprobe::tool>"
            "-DFILE=$<TARGET_FILE:${target}>" "-DSTEPS=${steps}"
            -P "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/reprobe-postlink-run.cmake"
    VERBATIM)
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "$<TARGET_FILE:reprobe::tool>")
endfunction()
