# The folder for `gcc -B$(reprobe ld --dir)`: the names of the linkers, each a link to reprobe, and
# reprobe-cc, which is cc with that folder. tool/ld.cpp looks for it from where the tool lies.
set(reprobe_linker_names ld ld.bfd ld.gold ld.lld ld.mold ld.wild)
set(reprobe_linker_folder "${CMAKE_INSTALL_LIBEXECDIR}/reprobe/ld")

file(RELATIVE_PATH from_bin "/${CMAKE_INSTALL_BINDIR}" "/${reprobe_linker_folder}")
target_compile_definitions(reprobe PRIVATE "REPROBE_LD_FOLDER=\"${from_bin}\"")

# The same in the build folder.
file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/ld")
foreach(name IN LISTS reprobe_linker_names)
  file(CREATE_LINK "../reprobe" "${PROJECT_BINARY_DIR}/ld/${name}" SYMBOLIC)
endforeach()
file(CREATE_LINK "reprobe" "${PROJECT_BINARY_DIR}/reprobe-cc" SYMBOLIC)

function(reprobe_install_linker_names)
  file(RELATIVE_PATH to_tool "/${reprobe_linker_folder}" "/${CMAKE_INSTALL_BINDIR}/reprobe")
  set(links "${PROJECT_BINARY_DIR}/installed-links")
  file(MAKE_DIRECTORY "${links}/ld")
  foreach(name IN LISTS reprobe_linker_names)
    file(CREATE_LINK "${to_tool}" "${links}/ld/${name}" SYMBOLIC)
  endforeach()
  file(CREATE_LINK "reprobe" "${links}/reprobe-cc" SYMBOLIC)
  install(DIRECTORY "${links}/ld/" DESTINATION "${reprobe_linker_folder}" COMPONENT tool)
  install(FILES "${links}/reprobe-cc" DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT tool)
endfunction()
