#include "tool/image_store.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <map>
#include <utility>

#include "libprobe/elf/open_file.hpp"
#include "tool/archive.hpp"
#include "tool/image_layers.hpp"

namespace reprobe {
namespace {

constexpr std::size_t kMaxDocument = std::size_t{4} << 20;
constexpr std::size_t kMaxLinks = 8;  // docker save names a layer that two images share by a link

tl::unexpected<Error> no_member(const std::string& name) {
  return fail(ErrorCode::unreadable, "", fmt::format("the image has no {}", name));
}

tl::unexpected<Error> large_document(const std::string& name) {
  return fail(ErrorCode::unreadable, "",
              fmt::format("{} is too large; expected at most {} bytes", name, kMaxDocument));
}

class FolderStore final : public ImageStore {
 public:
  explicit FolderStore(std::string path) : path_(std::move(path)) {}

  bool has(const std::string& name) const override {
    struct stat status {};
    return lstat(place(name).c_str(), &status) == 0 && S_ISREG(status.st_mode);
  }

  Result<std::string> document(const std::string& name) const override {
    if (!has(name)) return no_member(name);
    const auto source = open_file(place(name));
    if (!source) return tl::unexpected(source.error());
    if ((*source)->size() > kMaxDocument) return large_document(name);
    const auto bytes = (*source)->slice(FileOffset{0}, Size{(*source)->size()}, "the document");
    if (!bytes) return tl::unexpected(bytes.error());
    return std::string(as_text(*bytes));
  }

  Result<void> layer(const std::string& name, const Use& use) const override {
    if (!has(name)) return no_member(name);
    std::uint64_t size = 0;
    auto a = open_archive(place(name), size);
    if (!a) return tl::unexpected(a.error());
    UnpackBudget budget(size);
    use(a->get(), budget);
    return {};
  }

 private:
  // Nothing outside of the folder, whatever a manifest names.
  std::string place(const std::string& name) const { return path_ + "/" + clean_layer_path(name); }

  std::string path_;
};

class TarStore final : public ImageStore {
 public:
  explicit TarStore(std::string path) : path_(std::move(path)) {}

  // The names, once.
  Result<void> read_names() {
    std::uint64_t size = 0;
    auto a = open_archive(path_, size);
    if (!a) return tl::unexpected(a.error());
    archive_entry* entry = nullptr;
    int got = ARCHIVE_OK;
    while ((got = archive_read_next_header(a->get(), &entry)) >= ARCHIVE_WARN &&
           got != ARCHIVE_EOF) {
      const std::string name = clean_layer_path(name_of_entry(entry));
      const char* link = archive_entry_symlink(entry);
      const bool symbolic = link != nullptr;
      if (!symbolic) link = archive_entry_hardlink(entry);
      std::string to;
      if (link != nullptr) {
        const std::size_t slash = name.rfind('/');
        const bool beside = symbolic && *link != '/' && slash != std::string::npos;
        to = clean_layer_path(beside ? name.substr(0, slash + 1) + link : std::string(link));
      }
      members_.insert_or_assign(name, to);
    }
    if (got != ARCHIVE_EOF) return tl::unexpected(archive_error(a->get()));
    return {};
  }

  bool has(const std::string& name) const override { return !target(name).empty(); }

  Result<std::string> document(const std::string& name) const override {
    std::string text;
    std::optional<Error> failure;
    auto done = find(name, [&](archive* a, UnpackBudget& budget) {
      const auto bytes = read_member_head(a, kMaxDocument + 1, budget);
      if (!bytes) {
        failure = bytes.error();
      } else if (bytes->size() > kMaxDocument) {
        failure = large_document(name).value();
      } else {
        text = as_text(*bytes);
      }
    });
    if (!done) return tl::unexpected(done.error());
    if (failure) return tl::unexpected(*failure);
    return text;
  }

  Result<void> layer(const std::string& name, const Use& use) const override {
    std::optional<Error> failure;
    auto done = find(name, [&](archive* a, UnpackBudget& budget) {
      auto inner = open_member_archive(a, {}, budget);
      if (!inner) {
        failure = inner.error();
      } else {
        use(inner->get(), budget);
      }
    });
    if (done && failure) return tl::unexpected(*failure);
    return done;
  }

 private:
  // The member that a name leads to; "" where none does, or links lead in a circle.
  std::string target(const std::string& name) const {
    std::string at = clean_layer_path(name);
    for (std::size_t i = 0; i < kMaxLinks; ++i) {
      const auto found = members_.find(at);
      if (found == members_.end()) return "";
      if (found->second.empty()) return at;
      at = found->second;
    }
    return "";
  }

  Result<void> find(const std::string& name, const Use& use) const {
    const std::string wanted = target(name);
    if (wanted.empty()) return no_member(name);
    std::uint64_t size = 0;
    auto a = open_archive(path_, size);
    if (!a) return tl::unexpected(a.error());
    UnpackBudget budget(size);
    archive_entry* entry = nullptr;
    int got = ARCHIVE_OK;
    while ((got = archive_read_next_header(a->get(), &entry)) >= ARCHIVE_WARN &&
           got != ARCHIVE_EOF) {
      if (clean_layer_path(name_of_entry(entry)) != wanted) continue;
      use(a->get(), budget);
      return {};
    }
    if (got != ARCHIVE_EOF) return tl::unexpected(archive_error(a->get()));
    return no_member(name);
  }

  std::string path_;
  std::map<std::string, std::string> members_;  // and where it is a link, to what
};

}  // namespace

std::unique_ptr<const ImageStore> folder_image_store(const std::string& path) {
  return std::make_unique<FolderStore>(path);
}

Result<std::unique_ptr<const ImageStore>> tar_image_store(const std::string& path) {
  auto store = std::make_unique<TarStore>(path);
  if (auto done = store->read_names(); !done) return tl::unexpected(done.error());
  return store;
}

}  // namespace reprobe
