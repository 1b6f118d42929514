#include "tool/table.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace reprobe {

// Later bytes of a character of UTF-8 are 10xxxxxx.
std::size_t text_width(std::string_view cell) {
  return static_cast<std::size_t>(std::ranges::count_if(
      cell, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

void print_table(const TableRow& columns, const std::vector<TableRow>& rows,
                 const std::function<std::string(std::size_t row, std::size_t column)>& shown) {
  std::vector<std::size_t> widths;
  for (const std::string& column : columns) widths.push_back(text_width(column));
  for (const TableRow& row : rows) {
    for (std::size_t c = 0; c < columns.size(); ++c) {
      widths[c] = std::max(widths[c], text_width(row[c]));
    }
  }
  const auto print_row = [&](const TableRow& row, const auto& cell_text) {
    std::string line;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      line += "  " + cell_text(c);
      if (c + 1 < columns.size()) line += std::string(widths[c] - text_width(row[c]), ' ');
    }
    fmt::print("{}\n", line);
  };
  print_row(columns, [&](std::size_t c) { return columns[c]; });
  for (std::size_t r = 0; r < rows.size(); ++r) {
    print_row(rows[r], [&](std::size_t c) { return shown(r, c); });
  }
}

}  // namespace reprobe
