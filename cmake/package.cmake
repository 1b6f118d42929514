# `cpack`: a package reprobe with the tool and its documents, and reprobe-dev with the library, its
# headers and the CMake package. `cpack --config CPackSourceConfig.cmake` makes the source tarball.
set(CPACK_GENERATOR DEB)
set(CPACK_SOURCE_GENERATOR TGZ)
set(CPACK_SOURCE_PACKAGE_FILE_NAME "reprobe-${PROJECT_VERSION}")
set(CPACK_SOURCE_IGNORE_FILES "/build[^/]*/" "/\\\\.git/" "/\\\\.git$" "/__pycache__/")
set(CPACK_PACKAGE_CONTACT "The authors of reprobe <reprobe@localhost.localdomain>")
set(CPACK_PACKAGING_INSTALL_PREFIX "/usr")
set(CPACK_STRIP_FILES ON)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL tool development)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS OFF)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_TOOL_PACKAGE_NAME reprobe)
set(CPACK_DEBIAN_TOOL_PACKAGE_SECTION devel)
set(CPACK_COMPONENT_TOOL_DESCRIPTION
    "audits and repairs USDT probes of ELF files
 reprobe finds what linkers and strips break of SystemTap notes (stapsdt), which
 bpftrace, perf, gdb and others read, and repairs it in the linked file.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME reprobe-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "reprobe (= ${PROJECT_VERSION})")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
    "library, headers and CMake package of reprobe
 The library behind reprobe, the function reprobe_postlink() for builds with
 CMake, and the format of the index of probes for C programs.")
include(CPack)
