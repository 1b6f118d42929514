# The folders of libprobe, from the lowest to the highest: an include may only go down. rewrite,
# verify and process stand side by side: none of them includes another; the facade is over all. The
# build fails on an include that does not follow this (check_layers.cmake), before anything is compiled.
set(reprobe_base_layers elf notes code plan deps probes tracers audit process)

file(GLOB_RECURSE reprobe_layer_files CONFIGURE_DEPENDS
     "${PROJECT_SOURCE_DIR}/libprobe/*.cpp" "${PROJECT_SOURCE_DIR}/libprobe/*.hpp"
     "${PROJECT_SOURCE_DIR}/tool/*.cpp" "${PROJECT_SOURCE_DIR}/tool/*.hpp")
set(reprobe_layers_stamp "${PROJECT_BINARY_DIR}/layers.stamp")
add_custom_command(
  OUTPUT "${reprobe_layers_stamp}"
  COMMAND "${CMAKE_COMMAND}" "-DSOURCE=${PROJECT_SOURCE_DIR}" "-DSTAMP=${reprobe_layers_stamp}"
          -P "${PROJECT_SOURCE_DIR}/cmake/check_layers.cmake"
  DEPENDS ${reprobe_layer_files} "${PROJECT_SOURCE_DIR}/cmake/check_layers.cmake"
  COMMENT "Checking that no include goes upward"
  VERBATIM)
add_custom_target(reprobe_layers DEPENDS "${reprobe_layers_stamp}")
