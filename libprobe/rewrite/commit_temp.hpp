// The temporary file that becomes the output.
#pragma once

#include <csignal>
#include <string>

#include "libprobe/rewrite/commit_fd.hpp"

namespace reprobe {

struct CommitPlace;

class TempFile {
 public:
  enum class Kind {
    unnamed,  // O_TMPFILE: nothing can stay behind, however the process ends
    named,    // ".reprobe-<16 hex digits>.tmp": where the file system or /proc does not allow that
  };

  // Unnamed where possible. Error io: the folder cannot be written. Both lock the file (flock)
  // until its descriptor is closed.
  [[nodiscard]] static Result<TempFile> create(const CommitPlace& place);
  [[nodiscard]] static Result<TempFile> create_named(const CommitPlace& place);

  TempFile(TempFile&& other) noexcept;
  TempFile& operator=(TempFile&&) = delete;
  ~TempFile();  // removes the name, if there is one

  [[nodiscard]] Kind kind() const { return name_.empty() ? Kind::unnamed : Kind::named; }
  [[nodiscard]] int fd() const { return file_.get(); }
  // A path under which this process and its forked children can open the file.
  [[nodiscard]] const std::string& path() const { return path_; }

  // Puts the file in the place of the output, in one step for every observer. Error io: the
  // output is as it was, unless the message says that the new file is in place.
  [[nodiscard]] Result<void> publish();

 private:
  explicit TempFile(const CommitPlace& place) : place_(&place) {}
  [[nodiscard]] int replace_output() const;  // gives an errno value, 0 for success

  const CommitPlace* place_;  // of the caller, who keeps it alive
  UniqueFd file_;
  std::string name_;  // in the output's folder; empty: unnamed or published
  std::string path_;
};

// Removes the named temporary files that killed runs left in the output's folder. A file of a
// run that is still alive is locked (flock) and stays.
void remove_stale_temporaries(const CommitPlace& place);

// Holds back the signals that would end the process while it owns a named temporary file, and
// SIGXFSZ, so that a write above RLIMIT_FSIZE fails with EFBIG. They arrive when it is destroyed.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  // Lets all but SIGXFSZ through again: an unnamed file needs no cleaning up.
  void allow_interruption();
  // A held signal waits: the caller gives up, cleans up and lets it come.
  [[nodiscard]] bool interrupted() const;

 private:
  sigset_t before_;
};

}  // namespace reprobe
