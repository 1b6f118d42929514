// The door of the library: what is thrown behind it becomes an Error.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "libprobe/error.hpp"

namespace reprobe {

// `work()` gives a Result. Memory that runs out, a file system's or a formatter's exception, one
// that a caller's own predicate throws: all are errors (internal).
template <typename Work>
auto without_exceptions(const Work& work) -> decltype(work()) {
  // Not made by allocating: an exception may be thrown because nothing can be allocated.
  const char* what = "";
  try {
    return work();
  } catch (const std::bad_alloc&) {
    what = "out of memory";
  } catch (const std::exception& error) {
    try {
      return fail(ErrorCode::internal, "", std::string("internal: ") + error.what());
    } catch (...) {
      what = "out of memory";
    }
  } catch (...) {
    what = "an exception of unknown type";
  }
  Error error;
  error.code = ErrorCode::internal;
  // 15 characters stand in the string itself; a longer text is given where there is memory.
  try {
    error.message = what;
  } catch (...) {
    error.message.assign("out of memory");
  }
  return tl::unexpected<Error>(std::move(error));
}

}  // namespace reprobe
