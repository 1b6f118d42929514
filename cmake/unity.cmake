# reprobe_unity(TARGET [BY_SUBJECT]): compiles the sources of each folder as one unit. Most of a
# unit's time goes into the standard library's headers and templates, which all files use; a build
# of everything takes less than half the CPU time so. Therefore no two files of a folder may have a
# helper of the same name, in anonymous namespaces too: the compiler says so where they do.
# BY_SUBJECT: one unit for the files whose names begin with the same word, for a folder of many.
# -DREPROBE_UNITY=OFF compiles each file alone: quicker when one file is edited again and again.
option(REPROBE_UNITY "Compile the sources of a folder as one unit" ON)

function(reprobe_unity target)
  if(NOT REPROBE_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_filename_component(group "${source}" ABSOLUTE)
    get_filename_component(group "${group}" DIRECTORY)
    file(RELATIVE_PATH group "${PROJECT_SOURCE_DIR}" "${group}")
    if("BY_SUBJECT" IN_LIST ARGN)
      get_filename_component(name "${source}" NAME_WE)
      string(REGEX REPLACE "_.*" "" subject "${name}")
      string(APPEND group "/${subject}")
    endif()
    # The name becomes that of a file: unity_GROUP_cxx.cxx.
    string(REPLACE "/" "_" group "${group}")
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${group}")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
