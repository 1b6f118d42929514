// Names of Rust functions as their source has them. The formats: "Symbol Mangling" of the rustc
// book (v0, RFC 2603), and the older one, which is that of C++ with a hash of 16 digits at its end.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace reprobe {

// Without the hashes: "alloc::vec::Vec<u8>::push". Nothing where the name is not one of Rust's or
// has a part that is not understood (types of functions, dyn, constants other than numbers); a name
// is then shown as it is.
[[nodiscard]] std::optional<std::string> demangle_rust(std::string_view name);

}  // namespace reprobe
