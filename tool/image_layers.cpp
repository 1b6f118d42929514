#include "tool/image_layers.hpp"

#include <filesystem>

namespace reprobe {
namespace {

constexpr std::string_view kWhiteout = ".wh.", kOpaque = ".wh..wh..opq";

std::string_view last_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

std::string folder_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string() : std::string(path.substr(0, slash));
}

}  // namespace

std::string clean_layer_path(std::string_view path) {
  std::string clean =
      ("/" / std::filesystem::path(path).relative_path()).lexically_normal().generic_string();
  clean.erase(0, 1);
  if (clean.ends_with('/')) clean.pop_back();
  return clean;
}

bool UpperLayers::is_whiteout(const std::string& path) {
  return last_name(path).starts_with(kWhiteout);
}

bool UpperLayers::leave(const std::string& path) const {
  if (above_.files.contains(path) || above_.folders.contains(path) || above_.hidden.contains(path))
    return false;
  std::string parent = path;
  while (!parent.empty()) {
    parent = folder_of(parent);
    if (above_.opaque.contains(parent)) return false;
    if (!parent.empty() && (above_.files.contains(parent) || above_.hidden.contains(parent)))
      return false;
  }
  return true;
}

void UpperLayers::add(const std::string& path, bool folder) {
  const std::string_view name = last_name(path);
  if (name == kOpaque) {
    current_.opaque.insert(folder_of(path));
  } else if (name.starts_with(kWhiteout)) {
    const std::string parent = folder_of(path);
    const std::string_view hidden = name.substr(kWhiteout.size());
    current_.hidden.insert(parent.empty() ? std::string(hidden)
                                          : parent + "/" + std::string(hidden));
  } else {
    (folder ? current_.folders : current_.files).insert(path);
  }
}

void UpperLayers::end_layer() {
  above_.files.merge(current_.files);
  above_.folders.merge(current_.folders);
  above_.hidden.merge(current_.hidden);
  above_.opaque.merge(current_.opaque);
  current_ = {};
}

}  // namespace reprobe
