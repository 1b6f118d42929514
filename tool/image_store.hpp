// Where the documents and layers of a container image are read from: a folder, or a tar that is read
// from its beginning for each of them, so that nothing is unpacked.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "tool/archive_stream.hpp"

namespace reprobe {

class ImageStore {
 public:
  virtual ~ImageStore() = default;
  // A document of the image; at most 4 MiB. Error: it is not there, or too large.
  [[nodiscard]] virtual Result<std::string> document(const std::string& name) const = 0;
  [[nodiscard]] virtual bool has(const std::string& name) const = 0;
  // Calls `use` with the layer opened as an archive.
  using Use = std::function<void(archive* layer, UnpackBudget& budget)>;
  [[nodiscard]] virtual Result<void> layer(const std::string& name, const Use& use) const = 0;
};

[[nodiscard]] std::unique_ptr<const ImageStore> folder_image_store(const std::string& path);
[[nodiscard]] Result<std::unique_ptr<const ImageStore>> tar_image_store(const std::string& path);

}  // namespace reprobe
