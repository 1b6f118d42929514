# What `cmake --install` installs: the tool, the library, their CMake package and the documents.
include(CMakePackageConfigHelpers)

# Under share/, not lib/<triplet>/: the tool serves every target architecture, so a cross or
# 32-bit build has to find the package too.
set(package_dir "${CMAKE_INSTALL_DATADIR}/cmake/reprobe")

# The parts that packages are made of (package.cmake): what names none is for other builds.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development)

set_target_properties(reprobe PROPERTIES EXPORT_NAME tool)
install(TARGETS reprobe EXPORT reprobe-targets RUNTIME
        DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT tool)
reprobe_install_linker_names()
install(EXPORT reprobe-targets NAMESPACE reprobe:: DESTINATION "${package_dir}")

# The library in one archive. Its targets are a file of their own: a machine that only runs the tool
# after its links need not have what the library is linked with.
add_library(reprobe_archive STATIC
  $<TARGET_OBJECTS:probe_base> $<TARGET_OBJECTS:probe_rewrite> $<TARGET_OBJECTS:probe_verify>
  $<TARGET_OBJECTS:probe_facade>)
set_target_properties(reprobe_archive PROPERTIES
  OUTPUT_NAME reprobe EXPORT_NAME reprobe LINKER_LANGUAGE CXX)
target_compile_features(reprobe_archive INTERFACE cxx_std_20)
target_include_directories(reprobe_archive INTERFACE
  "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>"
  "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/reprobe>")
target_link_libraries(reprobe_archive
  PUBLIC tl::expected
  PRIVATE fmt::fmt OpenSSL::Crypto Reprobe::Capstone Reprobe::Zydis)
set(reprobe_pc_libraries "-lcapstone -lZydis")
if(REPROBE_LIEF)
  target_link_libraries(reprobe_archive PRIVATE Reprobe::LIEF)
  string(APPEND reprobe_pc_libraries " -lLIEF")
  set(reprobe_needs_lief ReprobeLIEF)
endif()
install(TARGETS reprobe_archive EXPORT reprobe-library
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(EXPORT reprobe-library NAMESPACE reprobe:: DESTINATION "${package_dir}")
install(FILES "${PROJECT_SOURCE_DIR}/include/reprobe/reprobe.hpp"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/reprobe")
# The types that reprobe.hpp speaks of.
install(DIRECTORY "${PROJECT_SOURCE_DIR}/libprobe"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/reprobe" FILES_MATCHING PATTERN "*.hpp")
file(RELATIVE_PATH reprobe_pc_prefix "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
configure_file("${PROJECT_SOURCE_DIR}/cmake/reprobe.pc.in" "${PROJECT_BINARY_DIR}/reprobe.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/reprobe.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

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
install(DIRECTORY "${PROJECT_SOURCE_DIR}/cmake/modules" DESTINATION "${package_dir}")

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

install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT tool)
install(FILES "${PROJECT_SOURCE_DIR}/README.md" DESTINATION "${CMAKE_INSTALL_DOCDIR}"
        COMPONENT tool OPTIONAL)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs/" DESTINATION "${CMAKE_INSTALL_DOCDIR}"
        COMPONENT tool FILES_MATCHING PATTERN "*.md" PATTERN "schema.json")

install(FILES "${PROJECT_SOURCE_DIR}/completions/reprobe.bash" RENAME reprobe
        DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" COMPONENT tool)
install(FILES "${PROJECT_SOURCE_DIR}/completions/_reprobe"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions" COMPONENT tool)
install(FILES "${PROJECT_SOURCE_DIR}/completions/reprobe.fish"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d" COMPONENT tool)
include(cmake/man.cmake)
