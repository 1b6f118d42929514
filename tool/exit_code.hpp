// Exit statuses, the same for every command.
#pragma once

#include <algorithm>

#include "libprobe/error.hpp"

namespace reprobe {

enum ExitCode : int {
  kDone = 0,
  kFindings = 1,    // audit and verify found something
  kUsage = 2,       // the command line makes no sense
  kUnreadable = 3,  // a file could not be read or is not ELF
  kRefused = 4,     // the rewrite would not be safe
  kInternal = 5,    // writing failed, or the result did not survive its check
};

[[nodiscard]] inline int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::usage:
      return kUsage;
    case ErrorCode::unreadable:
    case ErrorCode::not_elf:
    case ErrorCode::malformed:
      return kUnreadable;
    case ErrorCode::refused:
      return kRefused;
    case ErrorCode::io:
    case ErrorCode::internal:
      break;
  }
  return kInternal;
}

// The word for a program (docs/json.md).
[[nodiscard]] inline const char* name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::usage:
      return "usage";
    case ErrorCode::unreadable:
      return "unreadable";
    case ErrorCode::not_elf:
      return "not-elf";
    case ErrorCode::malformed:
      return "malformed";
    case ErrorCode::refused:
      return "refused";
    case ErrorCode::io:
      return "io";
    case ErrorCode::internal:
      break;
  }
  return "internal";
}

}  // namespace reprobe
