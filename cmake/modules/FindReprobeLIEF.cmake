# Current LIEF installs a CMake config (LIEF::LIEF); LIEF 0.9, as in Debian 12, has headers and a
# library only. Gives the target Reprobe::LIEF.
include(FindPackageHandleStandardArgs)
if(NOT TARGET Reprobe::LIEF)
  find_package(LIEF CONFIG QUIET)
  if(TARGET LIEF::LIEF)
    set(ReprobeLIEF_TARGET LIEF::LIEF)
  else()
    find_path(ReprobeLIEF_INCLUDE_DIR LIEF/ELF.hpp)
    find_library(ReprobeLIEF_LIBRARY LIEF)
    if(ReprobeLIEF_INCLUDE_DIR AND ReprobeLIEF_LIBRARY)
      add_library(reprobe_lief UNKNOWN IMPORTED)
      set_target_properties(reprobe_lief PROPERTIES
        IMPORTED_LOCATION "${ReprobeLIEF_LIBRARY}"
        INTERFACE_INCLUDE_DIRECTORIES "${ReprobeLIEF_INCLUDE_DIR}")
      set(ReprobeLIEF_TARGET reprobe_lief)
    endif()
  endif()
endif()
find_package_handle_standard_args(ReprobeLIEF REQUIRED_VARS ReprobeLIEF_TARGET)
if(ReprobeLIEF_FOUND AND NOT TARGET Reprobe::LIEF)
  add_library(Reprobe::LIEF INTERFACE IMPORTED)
  target_link_libraries(Reprobe::LIEF INTERFACE ${ReprobeLIEF_TARGET})
endif()
