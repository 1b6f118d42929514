#include "mapped_files.hpp"

#include <link.h>

namespace reprobe::test {

std::vector<MappedFile> mapped_files() {
  std::vector<MappedFile> files;
  const auto add = [](dl_phdr_info* info, std::size_t, void* data) {
    const bool program = info->dlpi_name[0] == '\0';
    static_cast<std::vector<MappedFile>*>(data)->push_back(
        {program ? "/proc/self/exe" : info->dlpi_name, info->dlpi_addr});
    return 0;
  };
  dl_iterate_phdr(add, &files);
  return files;
}

}  // namespace reprobe::test
