// Which files of a layer the layers above it leave: OCI Image Layer Filesystem Changeset, "Whiteouts".
#pragma once

#include <set>
#include <string>
#include <string_view>

namespace reprobe {

// "./usr//bin/../app" as "usr/app", whatever leads out of the root cut off.
[[nodiscard]] std::string clean_layer_path(std::string_view path);

class UpperLayers {
 public:
  // Neither replaced nor deleted by a layer that end_layer() closed.
  [[nodiscard]] bool leave(const std::string& path) const;
  // An entry of the layer that is read; whiteouts too.
  void add(const std::string& path, bool folder);
  [[nodiscard]] static bool is_whiteout(const std::string& path);
  // Its entries count from here on: whiteouts hide nothing of their own layer.
  void end_layer();

 private:
  struct Paths {
    std::set<std::string> files;    // nothing of the same name, nor below
    std::set<std::string> folders;  // no file of the same name
    std::set<std::string> hidden;   // deleted
    std::set<std::string> opaque;   // nothing below
  };
  Paths above_, current_;
};

}  // namespace reprobe
