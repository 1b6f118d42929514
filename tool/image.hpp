// Container images: OCI layouts, as a folder or a tar, and the tars of `docker save`.
#pragma once

#include <string>

#include "tool/inputs.hpp"

namespace reprobe {

[[nodiscard]] bool is_image_folder(const std::string& path);
// By the names of its first members; every tar has to be asked, so this must be cheap.
[[nodiscard]] bool is_image_tar(const std::string& path);

// The files of each image in it, as the layers leave them: a file that a later layer replaces or
// deletes is not there. With handlers.walk.layers each layer for itself.
void for_each_image_file(const std::string& path, const InputHandlers& handlers);

}  // namespace reprobe
