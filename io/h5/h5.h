// SPDX-License-Identifier: Apache-2.0
// RAII over the HDF5 C library: files, groups, datasets, attributes. Only the h5*.cpp files include
// hdf5.h, through h5_library.h. Every call is checked; an error names file and object and carries
// the library's own reason (its error stack is kept off stderr). Not thread safe: one thread at a
// time.
//
// Kinds of Error: io where a file cannot be opened, made, written or closed; input where it is not
// HDF5, is truncated or damaged, lacks an object, or holds another type or shape than asked for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace quadrille::h5 {

// One HDF5 identifier (hid_t), closed by the destructor.
class Id {
  public:
    using Closer = int (*)(int64_t);

    Id() = default;
    Id(int64_t id, Closer closer) : id_(id), closer_(closer) {}
    ~Id() { reset(); }
    Id(Id&& other) noexcept : id_(other.id_), closer_(other.closer_) { other.id_ = -1; }
    Id& operator=(Id&& other) noexcept;

    int64_t get() const { return id_; }
    void reset();  // closes; a failure is ignored
    bool close();  // closes; false: the library refused (the id is then abandoned)
    bool valid() const { return id_ >= 0; }

  private:
    int64_t id_ = -1;
    Closer closer_ = nullptr;
};

enum class TypeClass : uint8_t { integer, floating, string, other };

// Type of a dataset or attribute in the file. An enum over integers (numpy's bool) is an integer.
struct Type {
    TypeClass kind = TypeClass::other;
    int64_t size = 0;        // bytes of an element
    bool is_signed = false;  // integers
    bool variable = false;   // strings: variable length
    std::string name;        // "int32", "uint64 (big-endian)", "string", "compound"…
};

// Types we write. Strings are variable-length UTF-8.
enum class Element : uint8_t { u8, u16, i32, i64, f32, f64, string };

// An attribute's value; monostate: a type or rank that we do not read (compound, reference, 2-D…).
using Value = std::variant<std::monostate, int64_t, double, std::string, std::vector<int64_t>,
                           std::vector<double>, std::vector<std::string>>;
using Attributes = std::map<std::string, Value>;

std::string library_version();             // "HDF5 1.10.8"
std::string describe(const Value& value);  // the value as text, for messages and tables

// What carries attributes. `where` is "FILE" or "FILE:/path", for messages.
class Object {
  public:
    const std::string& where() const { return where_; }
    bool has_attribute(const std::string& name) const;
    std::vector<std::string> attribute_names() const;  // sorted
    std::optional<Value> attribute(const std::string& name) const;
    Attributes attributes() const;
    void set_attribute(const std::string& name, const Value& value);  // replaces
    void set_attributes(const Attributes& values);

  protected:
    Object() = default;
    Object(Id id, std::string where) : id_(std::move(id)), where_(std::move(where)) {}

    Id id_;
    std::string where_;
};

// A dataset seen as rows: axis 0 counts rows, the other axes make a row's elements.
// T is uint8_t, uint16_t, int32_t, int64_t, float or double (instantiated in h5.cpp).
class Dataset : public Object {
  public:
    Dataset() = default;  // none yet; only to be assigned to
    const std::vector<int64_t>& shape() const { return shape_; }
    const Type& type() const { return type_; }
    int64_t rows() const { return shape_.empty() ? 1 : shape_[0]; }
    int64_t row_elements() const { return row_elements_; }
    std::string describe() const;  // "int32 [17, 2]"

    // Error{input} naming what the file declares and does not hold: chunks that were never written,
    // external files or virtual sources that are missing or short. HDF5 reads fill values for most
    // of them. The first read asks it.
    void require_data() const;

    // Rows first … first + count - 1 in row-major order. An integer T reads any integer type and
    // throws Error{input} naming dataset and index for a value that T cannot hold; a floating T
    // reads any floating type.
    template <typename T>
    void read(int64_t first, std::span<T> out) const;
    template <typename T>
    std::vector<T> read(int64_t first, int64_t count) const;
    // As read<int64_t>, but a uint64 above the range becomes the largest int64.
    std::vector<int64_t> read_clamped(int64_t first, int64_t count) const;
    // Fixed or variable length, ASCII or UTF-8, padded in any way; padding is cut off.
    std::vector<std::string> read_strings(int64_t first, int64_t count) const;

    // The type must be the one the dataset was made with. Strings end at a NUL in HDF5: one with a
    // NUL inside is an Error{internal}.
    template <typename T>
    void write(int64_t first, std::span<const T> values);
    void write_strings(int64_t first, std::span<const std::string> values);
    template <typename T>
    void append(std::span<const T> values);  // extendable datasets: adds rows
    void append_strings(std::span<const std::string> values);

  private:
    friend class Group;
    Dataset(Id id, std::string where);
    void transfer_in(int64_t memory_type, int64_t first, int64_t count, void* out) const;
    void transfer_out(int64_t memory_type, int64_t first, int64_t count, const void* data);
    int64_t grow(int64_t rows);
    [[noreturn]] void fail_to_read() const;  // names a filter that this library lacks

    Type type_;
    std::vector<int64_t> shape_;
    int64_t row_elements_ = 1;
    mutable bool data_there_ = false;  // require_data has passed, or we write the dataset
};

class Group : public Object {
  public:
    std::vector<std::string> names() const;  // of the objects in it, sorted
    // Error{input}: `path` leads over a link to what is not there.
    bool has(const std::string& path) const;
    bool has_group(const std::string& path) const;
    bool has_dataset(const std::string& path) const;
    Group group(const std::string& path) const;
    Dataset dataset(const std::string& path) const;

    Group create_group(const std::string& name);
    // Fixed shape, contiguous.
    Dataset create_dataset(const std::string& name, Element element, std::vector<int64_t> shape);
    // No rows yet; grows along axis 0 by append.
    Dataset create_extendable(const std::string& name, Element element,
                              std::vector<int64_t> row_shape, int64_t chunk_rows);

  protected:
    // `prefix`: what stands before a member's name in messages ("FILE:/", "FILE:/prompts/").
    Group(Id id, std::string where, std::string prefix)
        : Object(std::move(id), std::move(where)), prefix_(std::move(prefix)) {}

  private:
    int kind_of(const std::string& path) const;  // H5O_type_t; -1: nothing there
    Dataset create(const std::string& name, Element element, const std::vector<int64_t>& shape,
                   int64_t chunk_rows);

    std::string prefix_;
};

// An open file is its root group.
class File : public Group {
  public:
    static File open(const std::filesystem::path& path);        // read only
    static File open_write(const std::filesystem::path& path);  // read and write
    static File create(const std::filesystem::path& path);      // replaces what is there

    // Hands everything written so far to the operating system and checks that it took it. To be
    // called before datasets with unwritten rows are destroyed.
    void flush();
    // flush, close and fsync. Every object of the file must be gone. Error{io} if any step fails.
    void close();

  private:
    File(Id file, const std::filesystem::path& path);
    static File open(const std::filesystem::path& path, bool writable);

    Id file_;
    std::filesystem::path path_;
};

}  // namespace quadrille::h5
