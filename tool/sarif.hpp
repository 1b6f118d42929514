// SARIF 2.1.0 (OASIS): what code hosts show as annotations.
#pragma once

#include "tool/json.hpp"

namespace reprobe {

struct FileFindings {
  std::string path;
  std::vector<Finding> findings;
};

[[nodiscard]] Json sarif_document(const std::vector<FileFindings>& files);

}  // namespace reprobe
