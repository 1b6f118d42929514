// The linker behind reprobe: where it is, and its run.
#pragma once

#include <string>
#include <vector>

#include "libprobe/error.hpp"

namespace reprobe {

// The program to run for `name`, a path or a name that is looked for in COMPILER_PATH, where GCC
// says where it looks for its linkers, and in PATH. Never a reprobe that has been asked already.
[[nodiscard]] Result<std::string> find_linker(const std::string& name);

// True for lld and mold, whatever they are called: told by the file that the name leads to.
[[nodiscard]] bool drops_base(const std::string& linker);

struct LinkerEnd {
  int code{};    // its exit code
  int signal{};  // what killed it, or 0
};

// Runs it with the words and waits for it. Signals that ask reprobe to end are passed on to it.
[[nodiscard]] Result<LinkerEnd> run_linker(const std::string& linker,
                                           const std::vector<std::string>& words);

// Becomes the program; an error where that fails.
[[nodiscard]] Error become(const std::string& program, const std::vector<std::string>& words);

// A file that goes with the object, or with the process where a signal ends that; unless it is
// kept.
class DoomedFile {
 public:
  explicit DoomedFile(const std::string& path);
  ~DoomedFile();
  DoomedFile(const DoomedFile&) = delete;
  DoomedFile& operator=(const DoomedFile&) = delete;

  void keep() { kept_ = true; }

 private:
  bool kept_{};
};

// Ends the process by the signal, as the linker ended.
[[noreturn]] void die_by(int signal);

}  // namespace reprobe
