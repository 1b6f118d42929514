// A descriptor that closes itself, and the errors of system calls.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "libprobe/error.hpp"

namespace reprobe {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() {
    if (fd_ >= 0) ::close(fd_);
  }

  [[nodiscard]] int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_{-1};
};

// "cannot write out/app: No space left on device". `number` is an errno value.
[[nodiscard]] inline tl::unexpected<Error> os_error(ErrorCode code, std::string_view what,
                                                    std::string_view path, int number) {
  std::string message(what);
  message.append(" ").append(path).append(": ");
  message.append(std::generic_category().message(number));
  return fail(code, "", std::move(message));
}

}  // namespace reprobe
