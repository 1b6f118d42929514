// What the command line of a linker says of the link: its output and its inputs. All other words
// are the linker's alone, and go to it as they are.
#pragma once

#include <string>
#include <vector>

namespace reprobe {

struct LinkArguments {
  std::string output{"a.out"};
  // Words that may name inputs, and the archives that -l leads to, in their order; what is no file
  // is for the reader to find out.
  std::vector<std::string> inputs;
  bool gc_sections{};
  bool relocatable{};  // -r
  bool separates{};    // -z says how segments share pages
  bool incremental{};  // gold's: the output describes itself, for the next link
};

// `words` come behind the linker's name. Response files are read as the linkers read them.
[[nodiscard]] LinkArguments read_link_arguments(const std::vector<std::string>& words);

// Those of `inputs` that hold machine code: relocatable objects and archives. Bitcode, shared
// libraries, linker scripts, and objects whose code the link-time optimiser makes anew are not
// among them.
[[nodiscard]] std::vector<std::string> object_files(const std::vector<std::string>& inputs);

// Does one of the objects itself, not a member of an archive, have `section`?
[[nodiscard]] bool any_object_has(const std::vector<std::string>& inputs, const char* section);

}  // namespace reprobe
