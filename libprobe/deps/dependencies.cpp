#include "libprobe/deps/dependencies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "libprobe/deps/ld_so_conf.hpp"
#include "libprobe/deps/search_paths.hpp"
#include "libprobe/elf/dynamic.hpp"

namespace reprobe {
namespace {

namespace fs = std::filesystem;

// Places that are looked at for one program. A hostile file names millions of libraries and
// folders; a large program needs some thousands.
constexpr std::size_t kMaxAttempts = 200'000;

// A file that is loaded, or will be.
struct Loaded {
  fs::path path;
  DynamicInfo info;
  PathWords words;
  std::optional<std::size_t> loader;
  Folders rpath;
  Folders runpath;
};

class DependencyFinder {
 public:
  DependencyFinder(const ElfFile& program, const Root& root)
      : header_(program.header()),
        root_(root),
        lib_(lib_word(header_, root)),
        platform_(platform_word(header_)) {}

  Dependencies run(const fs::path& path, const ElfFile& file) {
    // The kernel gives a program's name without links ($ORIGIN is /proc/self/exe); a library keeps
    // the one it was asked for by.
    DynamicInfo info = read_dynamic(file);
    std::error_code failure;
    const fs::path real =
        info.interpreter.empty() ? fs::absolute(path, failure) : fs::canonical(path, failure);
    choose_folders(info.interpreter);
    identities_.insert(fs::canonical(path, failure));
    load(path, failure ? path : real, std::move(info), std::nullopt);
    const std::string interpreter = loaded_.front().info.interpreter;
    std::optional<Dependency> last;
    if (!interpreter.empty()) last = find_interpreter(interpreter);
    for (std::size_t i = 0; i < loaded_.size(); ++i) {
      // loaded_ grows while this goes on.
      const std::vector<std::string> needed = loaded_[i].info.needed;
      for (const std::string& name : needed) {
        if (!exhausted_) need(name, i);
      }
    }
    if (last) result_.found.push_back(std::move(*last));
    return std::move(result_);
  }

 private:
  // What became of one place.
  enum class Attempt {
    found,
    not_there,  // or for another class or machine: the search goes on
    unusable,   // the dynamic linker gives up there
  };

  void choose_folders(const std::string& interpreter) {
    const auto musl = musl_folders(interpreter, root_);
    const Folders defaults = musl ? Folders{} : default_folders(header_);
    for (const fs::path& folder : musl ? *musl : configured_folders(root_)) {
      system_.push_back(root_.place(folder));
      if (std::ranges::find(defaults, folder) == defaults.end()) {
        not_default_.push_back(system_.back());
      }
    }
    for (const fs::path& folder : defaults) system_.push_back(root_.place(folder));
  }

  void load(const fs::path& path, const fs::path& real, DynamicInfo info,
            std::optional<std::size_t> loader) {
    Loaded file;
    file.path = path;
    file.words = {real.parent_path(), lib_, platform_};
    file.loader = loader;
    if (!info.rpath.empty()) file.rpath = expand_list(info.rpath, file.words, root_);
    if (!info.runpath.empty()) file.runpath = expand_list(info.runpath, file.words, root_);
    if (!info.soname.empty()) known_.insert(info.soname);
    file.info = std::move(info);
    loaded_.push_back(std::move(file));
  }

  // The kernel opens it, by its path alone.
  std::optional<Dependency> find_interpreter(const std::string& name) {
    const fs::path place = root_.place(name);
    const auto attempt = try_file(place);
    if (attempt != Attempt::found) {
      miss(name, 0);
      return std::nullopt;
    }
    known_.insert(name);
    if (!opened_) return std::nullopt;  // the program itself
    if (!opened_->soname.empty()) known_.insert(opened_->soname);
    return Dependency{name, place, loaded_.front().path};
  }

  // _dl_map_object(): a file that is loaded already and has that name satisfies it. What one file
  // does not find another may, whose RUNPATH says more.
  void need(const std::string& name, std::size_t loader) {
    if (known_.contains(name)) return;
    const auto place = find(name, loader);
    if (!place) return miss(name, loader);
    known_.insert(name);
    if (!opened_) return;  // a file that is loaded under another name
    result_.found.push_back({name, *place, loaded_[loader].path});
    std::error_code failure;
    const fs::path real = fs::absolute(*place, failure);
    load(*place, failure ? *place : real, std::move(*opened_), loader);
  }

  void miss(const std::string& name, std::size_t loader) {
    if (!missed_.insert(name).second) return;
    result_.missing.push_back(
        {name, loaded_[loader].path, reason_.empty() ? "not found" : std::move(reason_)});
  }

  std::optional<fs::path> find(const std::string& name, std::size_t loader) {
    reason_.clear();
    if (name.find('/') != std::string::npos) {
      const auto place = expand_path(name, loaded_[loader].words, root_);
      if (place && try_file(*place) == Attempt::found) return place;
      return std::nullopt;
    }
    std::vector<const Folders*> order;
    if (!loaded_[loader].info.has_runpath) {
      for (std::optional<std::size_t> at = loader; at; at = loaded_[*at].loader) {
        order.push_back(&loaded_[*at].rpath);
      }
    }
    order.push_back(&loaded_[loader].runpath);
    const Folders& system = loaded_[loader].info.no_default_folders ? not_default_ : system_;
    order.push_back(&system);
    for (const Folders* folders : order) {
      for (const fs::path& folder : *folders) {
        const fs::path place = root_.place_real(folder / name);
        const Attempt attempt = try_file(place);
        if (attempt == Attempt::found) return place;
        if (attempt == Attempt::unusable) return std::nullopt;
      }
    }
    return std::nullopt;
  }

  // open_verify(). On success opened_ is what the file asks for, or nothing where it is loaded.
  Attempt try_file(const fs::path& place) {
    if (attempts_ == kMaxAttempts) {
      exhausted_ = true;
      reason_ =
          fmt::format("the search ends here; expected at most {} places, found more", kMaxAttempts);
      return Attempt::unusable;
    }
    ++attempts_;
    std::error_code failure;
    if (!fs::exists(place, failure) || failure) return Attempt::not_there;
    const auto give = [&](Attempt attempt, std::string_view why) {
      reason_ = fmt::format("{}{}: {}", attempt == Attempt::not_there ? "not found, only " : "",
                            place.string(), why);
      return attempt;
    };
    const auto source = map_file(place);
    if (!source) return give(Attempt::not_there, source.error().message);
    const auto file = ElfFile::open(*source);
    if (!file) return give(Attempt::unusable, file.error().message);
    const ElfHeader& header = file->header();
    if (header.is64 != header_.is64 || header.order != header_.order ||
        header.machine != header_.machine) {
      return give(Attempt::not_there, "for another machine");
    }
    if (header.type != ET_DYN) return give(Attempt::unusable, "not a shared library");
    opened_.reset();
    const fs::path identity = fs::canonical(place, failure);
    if (identities_.insert(failure ? place : identity).second) opened_ = read_dynamic(*file);
    return Attempt::found;
  }

  ElfHeader header_;
  const Root& root_;
  std::string lib_;
  std::optional<std::string> platform_;
  Folders system_;       // the configured ones, then the default ones
  Folders not_default_;  // what DF_1_NODEFLIB leaves of them
  std::vector<Loaded> loaded_;
  std::set<std::string> known_;    // names that need no search
  std::set<std::string> missed_;   // names that are in result_.missing
  std::set<fs::path> identities_;  // of the files in loaded_ and of the interpreter
  std::optional<DynamicInfo> opened_;
  std::string reason_;
  std::size_t attempts_{};
  bool exhausted_{};
  Dependencies result_;
};

}  // namespace

Dependencies find_dependencies(const fs::path& program, const ElfFile& file, const Root& root) {
  return DependencyFinder(file, root).run(program, file);
}

}  // namespace reprobe
