# What `cmake --install` installs: the tool, its CMake package and the documents.
include(CMakePackageConfigHelpers)

# Under share/, not lib/<triplet>/: the tool serves every target architecture, so a cross or
# 32-bit build has to find the package too.
set(package_dir "${CMAKE_INSTALL_DATADIR}/cmake/reprobe")

install(TARGETS reprobe EXPORT reprobe-targets RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(EXPORT reprobe-targets NAMESPACE reprobe:: DESTINATION "${package_dir}")

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/reprobe-config.cmake.in"
  "${PROJECT_BINARY_DIR}/reprobe-config.cmake"
  INSTALL_DESTINATION "${package_dir}"
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/reprobe-config-version.cmake"
  COMPATIBILITY SameMinorVersion
  ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/reprobe-config.cmake"
              "${PROJECT_BINARY_DIR}/reprobe-config-version.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/reprobe-postlink.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/reprobe-postlink-run.cmake"
        DESTINATION "${package_dir}")

# Handlers in the process (docs/runtime.md).
if(TARGET reprobe-rt)
  install(TARGETS reprobe-rt reprobe-rt-static EXPORT reprobe-targets
          LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
          ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS reprobe-agent LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(FILES "${PROJECT_SOURCE_DIR}/include/reprobe/rt.h"
          DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/reprobe")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/reprobe-rt.pc.in"
                 "${PROJECT_BINARY_DIR}/reprobe-rt.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/reprobe-rt.pc"
          DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endif()

# What a program needs to find its own probes (docs/format.md).
install(FILES "${PROJECT_SOURCE_DIR}/include/reprobe/index.h"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/reprobe")

install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(FILES "${PROJECT_SOURCE_DIR}/README.md" DESTINATION "${CMAKE_INSTALL_DOCDIR}" OPTIONAL)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs/" DESTINATION "${CMAKE_INSTALL_DOCDIR}"
        FILES_MATCHING PATTERN "*.md")
