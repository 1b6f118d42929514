# Zydis 4 installs a CMake config (Zydis::Zydis), which asks for that of Zycore. Where the two are
# not found together, the headers and the library are enough. Gives the target Reprobe::Zydis.
include(FindPackageHandleStandardArgs)
if(NOT TARGET Reprobe::Zydis)
  find_package(zydis CONFIG QUIET)
  if(TARGET Zydis::Zydis)
    set(ReprobeZydis_TARGET Zydis::Zydis)
  else()
    find_path(ReprobeZydis_INCLUDE_DIR Zydis/Zydis.h)
    find_library(ReprobeZydis_LIBRARY Zydis)
    if(ReprobeZydis_INCLUDE_DIR AND ReprobeZydis_LIBRARY)
      add_library(reprobe_zydis UNKNOWN IMPORTED)
      set_target_properties(reprobe_zydis PROPERTIES
        IMPORTED_LOCATION "${ReprobeZydis_LIBRARY}"
        INTERFACE_INCLUDE_DIRECTORIES "${ReprobeZydis_INCLUDE_DIR}")
      set(ReprobeZydis_TARGET reprobe_zydis)
    endif()
  endif()
endif()
find_package_handle_standard_args(ReprobeZydis REQUIRED_VARS ReprobeZydis_TARGET)
if(ReprobeZydis_FOUND AND NOT TARGET Reprobe::Zydis)
  add_library(Reprobe::Zydis INTERFACE IMPORTED)
  target_link_libraries(Reprobe::Zydis INTERFACE ${ReprobeZydis_TARGET})
endif()
