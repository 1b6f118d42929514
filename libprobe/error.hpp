// How libprobe reports failure: every fallible function returns Result<T>.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace reprobe {

// What kind of failure, and so which exit status the tool ends with.
enum class ErrorCode {
  usage,       // the caller asked for something that makes no sense (exit 2)
  unreadable,  // the file cannot be opened, read or is cut short (exit 3)
  not_elf,     // no ELF magic, or a class/order/version we cannot read (exit 3)
  malformed,   // an ELF file whose structure contradicts itself (exit 3)
  refused,     // the rewrite would not be safe (exit 4)
  io,          // writing failed: full disk, unwritable folder (exit 5)
  internal,    // our own result did not survive its check (exit 5)
};

struct Error {
  ErrorCode code{};
  // Where in the file, in the form ".note.stapsdt+0x48" or "e_shoff"; empty for the whole file.
  std::string where;
  // What is wrong: "what; expected X, found Y".
  std::string message;
  // What the user can do about it; empty where there is nothing to say.
  std::string hint;
};

template <typename T>
using Result = tl::expected<T, Error>;

[[nodiscard]] inline tl::unexpected<Error> fail(ErrorCode code, std::string where,
                                                std::string message, std::string hint = {}) {
  return tl::unexpected<Error>(Error{code, std::move(where), std::move(message), std::move(hint)});
}

}  // namespace reprobe
