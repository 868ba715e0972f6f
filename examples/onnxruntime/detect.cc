// SPDX-License-Identifier: Apache-2.0
// Detects objects in an image with an exported ONNX file, in C++ with onnxruntime alone.
//
//   detect detector.onnx image.ppm
//
// The image is a binary PPM of the size that the metadata asks for. Prints the id, score and
// corners of each detection. docs/deploy.md explains it.
#include <onnxruntime_cxx_api.h>

#include <array>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

// The numbers of a value of the metadata, such as "[123.675, 116.28, 103.53]".
std::vector<float> numbers(const Ort::ModelMetadata& about, const char* key) {
  Ort::AllocatorWithDefaultOptions allocator;
  const auto text = about.LookupCustomMetadataMapAllocated(key, allocator);
  if (!text) throw std::runtime_error(std::string("the model has no metadata for ") + key);
  std::string words = text.get();
  for (char& c : words) {
    if (c == '[' || c == ']' || c == ',') c = ' ';
  }
  std::istringstream stream(words);
  std::vector<float> found;
  for (float number = 0; stream >> number;) found.push_back(number);
  return found;
}

int main(int argc, char** argv) try {
  if (argc != 3) throw std::runtime_error("expected detector.onnx image.ppm");
  Ort::Env env;
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(1);
  Ort::Session session(env, argv[1], options);
  const Ort::ModelMetadata about = session.GetModelMetadata();
  const std::vector<float> mean = numbers(about, "mean"), deviation = numbers(about, "std");

  std::ifstream file(argv[2], std::ios::binary);
  std::string magic;
  std::int64_t width = 0, height = 0, max_value = 0;
  file >> magic >> width >> height >> max_value;
  file.get();  // the white space behind the header
  if (!file || magic != "P6" || width < 1 || height < 1 || max_value != 255) {
    throw std::runtime_error(std::string(argv[2]) + ": expected a binary PPM with 8 bits");
  }
  std::vector<unsigned char> pixels(3 * width * height);
  file.read(reinterpret_cast<char*>(pixels.data()), static_cast<std::streamsize>(pixels.size()));
  if (!file) throw std::runtime_error(std::string(argv[2]) + ": the file is truncated");

  std::vector<float> data(pixels.size());  // (1, 3, height, width)
  for (std::size_t i = 0; i < data.size(); ++i) {
    const std::size_t channel = i % 3;
    data[channel * width * height + i / 3] = (pixels[i] - mean[channel]) / deviation[channel];
  }
  const std::array<std::int64_t, 4> shape{1, 3, height, width};
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  Ort::Value input =
      Ort::Value::CreateTensor<float>(memory, data.data(), data.size(), shape.data(), shape.size());
  const char* inputs[] = {"data"};
  const char* outputs[] = {"ids", "scores", "boxes"};
  const auto found = session.Run(Ort::RunOptions{}, inputs, &input, 1, outputs, 3);
  const auto* ids = found[0].GetTensorData<float>();
  const auto* scores = found[1].GetTensorData<float>();
  const auto* boxes = found[2].GetTensorData<float>();
  const std::int64_t rows = found[0].GetTensorTypeAndShapeInfo().GetShape()[1];
  for (std::int64_t row = 0; row < rows; ++row) {
    if (ids[row] < 0 || scores[row] < 0.5F) continue;  // an id of -1 is an empty row
    const float* box = boxes + 4 * row;
    std::cout << ids[row] << ' ' << scores[row] << ' ' << box[0] << ' ' << box[1] << ' ' << box[2]
              << ' ' << box[3] << '\n';
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << "detect: " << error.what() << '\n';
  return 1;
}
