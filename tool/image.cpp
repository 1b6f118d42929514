#include "tool/image.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tool/archive.hpp"
#include "tool/image_layers.hpp"
#include "tool/image_store.hpp"

namespace reprobe {
namespace {

using Document = nlohmann::json;

constexpr int kMaxIndexes = 4;  // an index may name others
constexpr std::size_t kMaxLayers = 1000;

struct Image {
  std::string name;  // of the tag or the platform, to tell several apart
  std::vector<std::string> layers;
};

std::string text_at(const Document& document, const char* key) {
  const auto found = document.is_object() ? document.find(key) : document.end();
  return document.is_object() && found != document.end() && found->is_string()
             ? found->get<std::string>()
             : std::string();
}

const Document& list_at(const Document& document, const char* key) {
  static const Document kNothing = Document::array();
  if (!document.is_object()) return kNothing;
  const auto found = document.find(key);
  return found != document.end() && found->is_array() ? *found : kNothing;
}

Result<Document> parse(const ImageStore& store, const std::string& name) {
  auto text = store.document(name);
  if (!text) return tl::unexpected(text.error());
  Document document = Document::parse(*text, nullptr, false);
  if (document.is_discarded())
    return fail(ErrorCode::unreadable, "", fmt::format("{} of the image is no JSON", name));
  return document;
}

// "sha256:abc" is the file blobs/sha256/abc (OCI Image Layout, "Blobs").
std::string blob_of(const std::string& digest) {
  std::string name = "blobs/" + digest;
  std::ranges::replace(name, ':', '/');
  return name;
}

std::string platform_of(const Document& descriptor) {
  if (const auto notes = descriptor.find("annotations"); notes != descriptor.end()) {
    if (auto name = text_at(*notes, "org.opencontainers.image.ref.name"); !name.empty())
      return name;
  }
  const auto platform = descriptor.find("platform");
  if (platform == descriptor.end()) return text_at(descriptor, "digest");
  const std::string variant = text_at(*platform, "variant");
  return text_at(*platform, "os") + "/" + text_at(*platform, "architecture") +
         (variant.empty() ? "" : "/" + variant);
}

class ImageReader {
 public:
  ImageReader(const ImageStore& store, const std::string& path, const InputHandlers& handlers)
      : store_(store), path_(path), handlers_(handlers) {}

  void read() {
    if (store_.has("manifest.json")) {
      read_docker_manifest();
    } else {
      read_index("index.json", 1);
    }
    for (const Image& image : images_) read_image(image);
  }

 private:
  void error(const Error& error) { handlers_.on_error(path_, error); }

  // docker save: [{"Config", "RepoTags", "Layers"}].
  void read_docker_manifest() {
    const auto manifest = parse(store_, "manifest.json");
    if (!manifest) return error(manifest.error());
    if (!manifest->is_array()) return error(fail(ErrorCode::unreadable, "", "manifest.json of the image is no list").value());
    for (const Document& each : *manifest) {
      const Document& tags = list_at(each, "RepoTags");
      Image image{!tags.empty() && tags[0].is_string() ? tags[0].get<std::string>()
                                                       : text_at(each, "Config"),
                  {}};
      for (const Document& layer : list_at(each, "Layers")) {
        if (layer.is_string()) image.layers.push_back(layer.get<std::string>());
      }
      images_.push_back(std::move(image));
    }
  }

  void read_index(const std::string& name, int depth) {
    const auto index = parse(store_, name);
    if (!index) return error(index.error());
    for (const Document& descriptor : list_at(*index, "manifests")) {
      const std::string digest = text_at(descriptor, "digest");
      if (digest.empty() || !seen_.insert(digest).second) continue;
      if (text_at(descriptor, "mediaType").ends_with("index.v1+json") ||
          text_at(descriptor, "mediaType").ends_with("manifest.list.v2+json")) {
        if (depth < kMaxIndexes) read_index(blob_of(digest), depth + 1);
        continue;
      }
      read_manifest(digest, platform_of(descriptor));
    }
  }

  void read_manifest(const std::string& digest, std::string name) {
    const auto manifest = parse(store_, blob_of(digest));
    if (!manifest) return error(manifest.error());
    Image image{std::move(name), {}};
    for (const Document& layer : list_at(*manifest, "layers")) {
      // An attestation, a signature or a chart has blobs that are no file systems.
      if (text_at(layer, "mediaType").find("tar") == std::string::npos) continue;
      image.layers.push_back(blob_of(text_at(layer, "digest")));
    }
    if (!image.layers.empty()) images_.push_back(std::move(image));
  }

  // From the top layer down: what a layer hides is known before it is met.
  void read_image(const Image& image) {
    if (image.layers.size() > kMaxLayers) {
      return error(fail(ErrorCode::unreadable, "",
                        fmt::format("the image has too many layers; expected at most {}, found {}",
                                    kMaxLayers, image.layers.size()))
                       .value());
    }
    const std::string shown =
        images_.size() == 1 ? path_ : fmt::format("{}({})", path_, image.name);
    UpperLayers upper;
    if (handlers_.walk.layers) {
      for (const std::string& layer : image.layers) {
        read_layer(layer, fmt::format("{}({})", shown, layer), nullptr);
      }
      return;
    }
    for (auto layer = image.layers.rbegin(); layer != image.layers.rend(); ++layer) {
      read_layer(*layer, shown, &upper);
      upper.end_layer();
    }
  }

  // `upper`: nothing where each layer is read for itself.
  void read_layer(const std::string& layer, const std::string& shown, UpperLayers* upper) {
    // Of files that are hidden, whose hard links are not: the name that is left.
    std::map<std::string, std::string> links;
    auto done = store_.layer(layer, [&](archive* a, UnpackBudget& budget) {
      read_entries(a, budget, layer, shown, upper, links);
    });
    if (done && !links.empty()) {
      done = store_.layer(layer, [&](archive* a, UnpackBudget& budget) {
        read_linked(a, budget, shown, links);
      });
    }
    if (!done) error(done.error());
  }

  void read_entries(archive* a, UnpackBudget& budget, const std::string& layer,
                    const std::string& shown, UpperLayers* upper,
                    std::map<std::string, std::string>& links) {
    archive_entry* entry = nullptr;
    std::set<std::string> hidden;
    bool reported = false;
    InputHandlers watched = handlers_;
    watched.on_error = [&](const std::string& where, const Error& failure) {
      reported = true;
      handlers_.on_error(where, failure);
    };
    for (;;) {
      const int got = archive_read_next_header(a, &entry);
      if (got == ARCHIVE_EOF) return;
      if (got < ARCHIVE_WARN || is_raw(a)) {
        if (reported) return;
        const Error failure = got < ARCHIVE_WARN ? archive_error(a)
                                                 : Error{ErrorCode::unreadable, "", "no tar", ""};
        return handlers_.on_error(fmt::format("{}({})", path_, layer), failure);
      }
      reported = false;
      const std::string name = clean_layer_path(name_of_entry(entry));
      const bool visible = upper == nullptr || upper->leave(name);
      if (upper != nullptr) upper->add(name, archive_entry_filetype(entry) == AE_IFDIR);
      if (UpperLayers::is_whiteout(name)) continue;
      if (const char* link = archive_entry_hardlink(entry); link != nullptr && visible) {
        const std::string target = clean_layer_path(link);
        if (hidden.contains(target)) links.emplace(target, name);
      }
      if (!is_regular_entry(entry)) continue;
      if (!visible) {
        hidden.insert(name);
        continue;
      }
      const std::string member = fmt::format("{}({})", shown, name);
      handlers_.on_visit(member);
      read_one_member(a, member, 1, budget, watched);
    }
  }

  void read_linked(archive* a, UnpackBudget& budget, const std::string& shown,
                   const std::map<std::string, std::string>& links) {
    archive_entry* entry = nullptr;
    // The first pass said what is wrong with the layer.
    for (int got = 0; (got = archive_read_next_header(a, &entry)) >= ARCHIVE_WARN &&
                      got != ARCHIVE_EOF;) {
      const auto link = links.find(clean_layer_path(name_of_entry(entry)));
      if (link == links.end() || !is_regular_entry(entry)) continue;
      const std::string member = fmt::format("{}({})", shown, link->second);
      handlers_.on_visit(member);
      read_one_member(a, member, 1, budget, handlers_);
    }
  }

  const ImageStore& store_;
  const std::string& path_;
  const InputHandlers& handlers_;
  std::vector<Image> images_;
  std::set<std::string> seen_;
};

bool is_file_of(const std::string& folder, const char* name) {
  struct stat status {};
  return lstat((folder + "/" + name).c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

// Of docker, podman, skopeo, buildkit: documents, "blobs/...", or digests of 64 digits.
bool is_image_member(const std::string& name) {
  constexpr std::size_t kDigest = 64;
  if (name == "oci-layout" || name == "index.json" || name == "manifest.json" ||
      name == "repositories" || name == "blobs" || name.starts_with("blobs/"))
    return true;
  return name.size() >= kDigest && name.substr(0, kDigest).find_first_not_of("0123456789abcdef") ==
                                       std::string::npos;
}

}  // namespace

bool is_image_folder(const std::string& path) {
  return is_file_of(path, "oci-layout") && is_file_of(path, "index.json");
}

bool is_image_tar(const std::string& path) {
  std::uint64_t size = 0;
  const auto a = open_archive(path, size);
  if (!a) return false;
  archive_entry* entry = nullptr;
  bool likely = false, document = false;
  int got = ARCHIVE_OK;
  while (!document && (got = archive_read_next_header(a->get(), &entry)) >= ARCHIVE_WARN &&
         got != ARCHIVE_EOF) {
    if ((archive_format(a->get()) & ARCHIVE_FORMAT_BASE_MASK) != ARCHIVE_FORMAT_TAR) return false;
    const std::string name = clean_layer_path(name_of_entry(entry));
    if (name.empty()) continue;  // "./"
    likely = likely || is_image_member(name);
    if (!likely) return false;
    document = name == "manifest.json" || name == "index.json";
  }
  return document;
}

void for_each_image_file(const std::string& path, const InputHandlers& handlers) {
  struct stat status {};
  if (stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    return ImageReader(*folder_image_store(path), path, handlers).read();
  }
  const auto store = tar_image_store(path);
  if (!store) return handlers.on_error(path, store.error());
  ImageReader(**store, path, handlers).read();
}

}  // namespace reprobe
