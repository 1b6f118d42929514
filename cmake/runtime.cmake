# libreprobe-rt: handlers in the process (include/reprobe/rt.h). C and nothing but libc; where no
# sled leads to it, it is not built.
if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux" OR NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  return()
endif()
enable_language(ASM)

file(GLOB runtime_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/libprobe/runtime/*.c"
     "${PROJECT_SOURCE_DIR}/libprobe/runtime/*.S")
# What runs at a hit before anything but the general registers was saved.
set_source_files_properties("${PROJECT_SOURCE_DIR}/libprobe/runtime/general.c" PROPERTIES
                            COMPILE_OPTIONS "-mgeneral-regs-only;-fno-stack-protector")

# A sanitizer's instrumentation of what runs at a hit would call what may use any register.
function(reprobe_runtime name kind)
  add_library(${name} ${kind} ${runtime_sources})
  add_library(reprobe::${name} ALIAS ${name})
  target_include_directories(${name} PUBLIC
                             "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
                             "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  set_target_properties(${name} PROPERTIES OUTPUT_NAME reprobe-rt C_STANDARD 11 C_EXTENSIONS OFF
                        C_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wconversion -O2 -fcf-protection
                         -fno-sanitize=all -fasynchronous-unwind-tables)
endfunction()
reprobe_runtime(reprobe-rt SHARED)
reprobe_runtime(reprobe-rt-static STATIC)
# Threads may be in it at any time: it is never unloaded.
target_link_options(reprobe-rt PRIVATE -Wl,-z,now -Wl,-z,nodelete -Wl,-z,defs -fno-sanitize=all)
set_target_properties(reprobe-rt PROPERTIES VERSION ${PROJECT_VERSION}
                      SOVERSION ${PROJECT_VERSION_MAJOR})

# What counts in a program that knows nothing of it; `reprobe run` sets it up.
add_library(reprobe-agent SHARED "${PROJECT_SOURCE_DIR}/libprobe/agent/agent.c"
            "${PROJECT_SOURCE_DIR}/libprobe/agent/counting.c"
            "${PROJECT_SOURCE_DIR}/libprobe/agent/dlopen.S")
set_source_files_properties("${PROJECT_SOURCE_DIR}/libprobe/agent/counting.c" PROPERTIES
                            COMPILE_OPTIONS "-mgeneral-regs-only;-fno-stack-protector")
target_include_directories(reprobe-agent PRIVATE "${PROJECT_SOURCE_DIR}")
target_link_libraries(reprobe-agent PRIVATE reprobe-rt)
target_compile_options(reprobe-agent PRIVATE -Wall -Wextra -Wconversion -O2 -fcf-protection
                       -fno-sanitize=all)
target_link_options(reprobe-agent PRIVATE -Wl,-z,now -Wl,-z,nodelete -Wl,-z,defs
                    -fno-sanitize=all)
set_target_properties(reprobe-agent PROPERTIES C_STANDARD 11 C_EXTENSIONS OFF
                      C_VISIBILITY_PRESET hidden INSTALL_RPATH "$ORIGIN")
