// The files of --objects.
#pragma once

#include <string>
#include <vector>

#include "libprobe/audit/link_objects.hpp"
#include "libprobe/error.hpp"

namespace reprobe {

// Objects, archives of them and thin archives. Error: the first file or member that cannot be read,
// with its name in the message.
[[nodiscard]] Result<LinkObjects> read_link_objects(const std::vector<std::string>& paths);

}  // namespace reprobe
