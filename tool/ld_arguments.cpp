#include "tool/ld_arguments.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>

#include "libprobe/elf/constants.hpp"
#include "libprobe/elf/file.hpp"
#include "tool/archive.hpp"
#include "tool/thin_archive.hpp"

namespace reprobe {
namespace {

// Response files may name others; libiberty gives up after as many.
constexpr int kMostResponseFiles = 2000;
constexpr std::uintmax_t kLongestResponseFile = std::uintmax_t{64} << 20;

bool is_blank(char c) { return std::string_view(" \t\n\v\f\r").find(c) != std::string_view::npos; }

// The rules of buildargv() in libiberty, which LLVM's "GNU" tokenizer shares: blanks separate
// words, either quote keeps them together, a backslash takes the next character as it is.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  std::optional<std::string> word;
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote == 0 && is_blank(c)) {
      if (word) words.push_back(std::move(*word));
      word.reset();
      continue;
    }
    if (!word) word.emplace();
    if (c == '\\' && i + 1 < text.size()) {
      *word += text[++i];
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (quote != 0 && c == quote) {
      quote = 0;
    } else {
      *word += c;
    }
  }
  if (word) words.push_back(std::move(*word));
  return words;
}

std::optional<std::string> response_file(const std::string& path) {
  std::error_code failure;
  if (!std::filesystem::is_regular_file(path, failure)) return std::nullopt;
  if (std::filesystem::file_size(path, failure) > kLongestResponseFile) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// A word @FILE is what FILE says; where it cannot be read it is the word itself.
std::vector<std::string> expanded(std::vector<std::string> words) {
  std::vector<std::string> result;
  std::ranges::reverse(words);
  int files = 0;
  while (!words.empty()) {
    std::string word = std::move(words.back());
    words.pop_back();
    const bool named = word.size() > 1 && word[0] == '@' && files < kMostResponseFiles;
    const auto text = named ? response_file(word.substr(1)) : std::nullopt;
    if (!text) {
      result.push_back(std::move(word));
      continue;
    }
    ++files;
    auto inner = words_of(*text);
    words.insert(words.end(), std::make_move_iterator(inner.rbegin()),
                 std::make_move_iterator(inner.rend()));
  }
  return result;
}

class LinkReader {
 public:
  explicit LinkReader(std::vector<std::string> words) : words_(std::move(words)) {}

  LinkArguments read() {
    while (at_ < words_.size()) read_word(words_[at_++]);
    // Folders given with -L count for all libraries, also for those that stand before them.
    for (const Library& library : libraries_) add_library(library);
    return std::move(arguments_);
  }

 private:
  struct Library {
    std::string name;
    bool archives_only;
  };

  std::string next() { return at_ < words_.size() ? words_[at_++] : std::string(); }

  // The value of an option: "--output=X" or "--output X". One dash does as well as two, but not
  // before an "o", where it would be -o. `shortest`: getopt_long() takes an option's beginning.
  std::optional<std::string> value_of(const std::string& word, std::string_view option,
                                      std::size_t shortest = 0) {
    std::string_view name = word;
    if (!name.starts_with("--") && (!name.starts_with('-') || option.starts_with('o'))) {
      return std::nullopt;
    }
    name.remove_prefix(name.starts_with("--") ? 2 : 1);
    const std::size_t equals = name.find('=');
    const std::string_view found = name.substr(0, equals);
    const bool is_it =
        found == option || (shortest != 0 && found.size() >= shortest && option.starts_with(found));
    if (!is_it) return std::nullopt;
    return equals == std::string_view::npos ? next() : std::string(name.substr(equals + 1));
  }

  // "-oX" or "-o X".
  std::optional<std::string> value_of_letter(const std::string& word, char letter) {
    if (word.size() < 2 || word[0] != '-' || word[1] != letter) return std::nullopt;
    return word.size() == 2 ? next() : word.substr(2);
  }

  bool read_switch(const std::string& word) {
    if (!word.starts_with('-')) return false;
    const std::string_view name = std::string_view(word).substr(word.starts_with("--") ? 2 : 1);
    if (name == "gc-sections") {
      arguments_.gc_sections = true;
    } else if (name == "no-gc-sections") {
      arguments_.gc_sections = false;
    } else if (name == "r" || name == "i" || name == "Ur" || name == "relocatable") {
      arguments_.relocatable = true;
    } else if (name.starts_with("incremental")) {
      arguments_.incremental = true;
    } else if (name == "Bstatic" || name == "dn" || name == "non_shared" || name == "static") {
      archives_only_ = true;
    } else if (name == "Bdynamic" || name == "dy" || name == "call_shared") {
      archives_only_ = false;
    } else {
      return false;
    }
    return true;
  }

  void read_word(const std::string& word) {
    if (read_switch(word)) return;
    if (const auto keyword = value_of_letter(word, 'z')) {
      arguments_.separates |= keyword->find("separate-") != std::string::npos;
      return;
    }
    // Their values are options of another program, and may look like the linker's.
    if (value_of(word, "mllvm") || value_of(word, "plugin-opt")) return;
    // No other long option of any linker begins with "--outp".
    if (const auto output = value_of(word, "output", 4)) {
      arguments_.output = *output;
    } else if (const auto root = value_of(word, "sysroot")) {
      sysroot_ = *root;
    } else if (const auto folder = value_of(word, "library-path")) {
      folders_.push_back(*folder);
    } else if (const auto library = value_of(word, "library")) {
      libraries_.push_back({*library, archives_only_});
    } else if (const auto named = value_of_letter(word, 'o')) {
      arguments_.output = *named;
    } else if (const auto place = value_of_letter(word, 'L')) {
      folders_.push_back(*place);
    } else if (const auto wanted = value_of_letter(word, 'l')) {
      libraries_.push_back({*wanted, archives_only_});
    } else if (!word.starts_with('-')) {
      arguments_.inputs.push_back(word);
    }
  }

  std::filesystem::path in_sysroot(const std::string& folder) const {
    constexpr std::string_view kWord = "$SYSROOT";
    if (folder.starts_with('=')) return sysroot_ + folder.substr(1);
    if (folder.starts_with(kWord)) return sysroot_ + folder.substr(kWord.size());
    return folder;
  }

  // -lX is libX.so or libX.a of the first folder that has one, -l:X a file of that name.
  void add_library(const Library& library) {
    std::error_code ignored;
    const auto is_there = [&](const std::filesystem::path& path) {
      return std::filesystem::is_regular_file(path, ignored);
    };
    for (const std::string& folder : folders_) {
      const std::filesystem::path place = in_sysroot(folder);
      if (library.name.starts_with(':')) {
        const auto path = place / library.name.substr(1);
        if (!is_there(path)) continue;
        arguments_.inputs.push_back(path.string());
        return;
      }
      if (!library.archives_only && is_there(place / ("lib" + library.name + ".so"))) return;
      const auto archive = place / ("lib" + library.name + ".a");
      if (!is_there(archive)) continue;
      arguments_.inputs.push_back(archive.string());
      return;
    }
  }

  std::vector<std::string> words_;
  std::size_t at_{};
  LinkArguments arguments_;
  std::string sysroot_;
  std::vector<std::string> folders_;
  std::vector<Library> libraries_;
  bool archives_only_{};
};

// The relocatable object at `path`; nothing where it is something else.
std::optional<ElfFile> object_at(const std::shared_ptr<const ByteSource>& source) {
  auto file = ElfFile::open(source);
  if (!file || file->header().type != ET_REL) return std::nullopt;
  return std::move(*file);
}

// GCC's and clang's sections of bitcode. The notes of such an object are not those of the link.
bool is_made_anew(const ElfFile& object) {
  return std::ranges::any_of(object.sections(), [](const Section& section) {
    return section.name.starts_with(".gnu.lto_") || section.name == ".llvm.lto";
  });
}

bool is_object_or_archive(const std::string& path) {
  std::error_code failure;
  if (!std::filesystem::is_regular_file(path, failure)) return false;
  const auto source = map_file(path);
  if (!source) return false;
  const Size head_size{std::min(kHeadSize, (*source)->size())};
  const auto head = (*source)->slice(FileOffset{0}, head_size, "the first bytes");
  if (!head) return false;
  if (as_text(*head).starts_with("!<arch>\n") || is_thin_archive(*head)) return true;
  const auto object = object_at(*source);
  return object && !is_made_anew(*object);
}

}  // namespace

LinkArguments read_link_arguments(const std::vector<std::string>& words) {
  return LinkReader(expanded(words)).read();
}

std::vector<std::string> object_files(const std::vector<std::string>& inputs) {
  std::vector<std::string> objects;
  std::ranges::copy_if(inputs, std::back_inserter(objects), is_object_or_archive);
  return objects;
}

bool any_object_has(const std::vector<std::string>& inputs, const char* section) {
  return std::ranges::any_of(inputs, [&](const std::string& path) {
    std::error_code failure;
    if (!std::filesystem::is_regular_file(path, failure)) return false;
    const auto source = map_file(path);
    const auto object = source ? object_at(*source) : std::nullopt;
    return object && std::ranges::find(object->sections(), section, &Section::name) !=
                         object->sections().end();
  });
}

}  // namespace reprobe
