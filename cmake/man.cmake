# The man pages, made of what `--help` of the tool that was just built says; none where that cannot run
# here, or no Python is there.
find_package(Python3 COMPONENTS Interpreter)
if(NOT Python3_Interpreter_FOUND OR CMAKE_CROSSCOMPILING)
  return()
endif()
set(man_pages "${PROJECT_BINARY_DIR}/man")
set(man_maker "${PROJECT_SOURCE_DIR}/docs/man/make_pages.py")
set(man_header "${PROJECT_SOURCE_DIR}/include/reprobe/rt.h")
add_custom_command(
  OUTPUT "${man_pages}/reprobe.1"
  COMMAND "${Python3_EXECUTABLE}" "${man_maker}" "$<TARGET_FILE:reprobe>" "${man_header}"
          "${man_pages}"
  DEPENDS reprobe "${man_maker}" "${man_header}"
  COMMENT "Writing the man pages"
  VERBATIM)
add_custom_target(reprobe_man ALL DEPENDS "${man_pages}/reprobe.1")
install(DIRECTORY "${man_pages}/" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" COMPONENT tool
        FILES_MATCHING PATTERN "*.1")
install(DIRECTORY "${man_pages}/" DESTINATION "${CMAKE_INSTALL_MANDIR}/man3"
        FILES_MATCHING PATTERN "*.3")
