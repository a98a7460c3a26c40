#include "host.h"
extern "C" __attribute__((visibility("default")))
void af_kernel(void* const* args, int64_t begin, int64_t end, char* scratch) {
  const float* __restrict__ x0 = (const float*)args[0];
  const float* __restrict__ x1 = (const float*)args[1];
  const float* __restrict__ x2 = (const float*)args[2];
  const float* __restrict__ x3 = (const float*)args[3];
  const float* __restrict__ x4 = (const float*)args[4];
  float* __restrict__ y0 = (float*)__builtin_assume_aligned(args[5], 64);
  float* __restrict__ packed = (float*)(scratch + 0);
  float* __restrict__ scores = (float*)(scratch + 192);
  float* __restrict__ divisors = (float*)(scratch + 512);
  for (int64_t g = begin; g < end; ++g) {
    if ((g < 1)) {
      for (int64_t k69_1 = 0; k69_1 < 3; ++k69_1) {
        af_store<float, 16>(packed + (k69_1 * 16), af_lanes<vec<float, 16>>([&](int64_t l) { return (x1[((l * 3) + k69_1)]); }));
      }
      vec<float, 16> acc72_0, acc72_1, acc72_2, acc72_3;
      acc72_0 = af_splat<vec<float, 16>>(0x0.0p+0f);
      acc72_1 = af_splat<vec<float, 16>>(0x0.0p+0f);
      acc72_2 = af_splat<vec<float, 16>>(0x0.0p+0f);
      acc72_3 = af_splat<vec<float, 16>>(0x0.0p+0f);
      const vec<float, 16> t0 = af_load<float, 16>(packed + 0);
      const vec<float, 16> b78_2 = t0;
      const float a80_3 = x0[0];
      acc72_0 = (acc72_0 + (af_splat<vec<float, 16>>(a80_3) * b78_2));
      const float a80_4 = x0[3];
      acc72_1 = (acc72_1 + (af_splat<vec<float, 16>>(a80_4) * b78_2));
      const float a80_5 = x0[6];
      acc72_2 = (acc72_2 + (af_splat<vec<float, 16>>(a80_5) * b78_2));
      const float a80_6 = x0[9];
      acc72_3 = (acc72_3 + (af_splat<vec<float, 16>>(a80_6) * b78_2));
      const vec<float, 16> t1 = af_load<float, 16>(packed + 16);
      const vec<float, 16> b78_7 = t1;
      const float a80_8 = x0[1];
      acc72_0 = (acc72_0 + (af_splat<vec<float, 16>>(a80_8) * b78_7));
      const float a80_9 = x0[4];
      acc72_1 = (acc72_1 + (af_splat<vec<float, 16>>(a80_9) * b78_7));
      const float a80_10 = x0[7];
      acc72_2 = (acc72_2 + (af_splat<vec<float, 16>>(a80_10) * b78_7));
      const float a80_11 = x0[10];
      acc72_3 = (acc72_3 + (af_splat<vec<float, 16>>(a80_11) * b78_7));
      const vec<float, 16> t2 = af_load<float, 16>(packed + 32);
      const vec<float, 16> b84_12 = t2;
      const float a86_13 = x0[2];
      acc72_0 = (acc72_0 + (af_splat<vec<float, 16>>(a86_13) * b84_12));
      const float a86_14 = x0[5];
      acc72_1 = (acc72_1 + (af_splat<vec<float, 16>>(a86_14) * b84_12));
      const float a86_15 = x0[8];
      acc72_2 = (acc72_2 + (af_splat<vec<float, 16>>(a86_15) * b84_12));
      const float a86_16 = x0[11];
      acc72_3 = (acc72_3 + (af_splat<vec<float, 16>>(a86_16) * b84_12));
      const float t3 = x2[0];
      af_store<float, 16>(scores + 0, ((acc72_0 / af_splat<vec<float, 16>>(t3)) + af_splat<vec<float, 16>>(x3[0])));
      af_store<float, 16>(scores + 16, ((acc72_1 / af_splat<vec<float, 16>>(t3)) + af_splat<vec<float, 16>>(x3[1])));
      af_store<float, 16>(scores + 32, ((acc72_2 / af_splat<vec<float, 16>>(t3)) + af_splat<vec<float, 16>>(x3[2])));
      af_store<float, 16>(scores + 48, ((acc72_3 / af_splat<vec<float, 16>>(t3)) + af_splat<vec<float, 16>>(x3[3])));
      vec<float, 16> acc90_0;
      acc90_0 = af_splat<vec<float, 16>>(0x0.0p+0f);
      const vec<float, 16> b96_17 = t0;
      const float a97_18 = x0[12];
      acc90_0 = (acc90_0 + (af_splat<vec<float, 16>>(a97_18) * b96_17));
      const vec<float, 16> b96_19 = t1;
      const float a97_20 = x0[13];
      acc90_0 = (acc90_0 + (af_splat<vec<float, 16>>(a97_20) * b96_19));
      const vec<float, 16> b101_21 = t2;
      const float a102_22 = x0[14];
      acc90_0 = (acc90_0 + (af_splat<vec<float, 16>>(a102_22) * b101_21));
      af_store<float, 16>(scores + 64, ((acc90_0 / af_splat<vec<float, 16>>(t3)) + af_splat<vec<float, 16>>(x3[4])));
      vec<float, 16> row105_0;
      row105_0 = af_splat<vec<float, 16>>(((float)-AF_INF));
      for (int64_t j108_23 = 0; j108_23 < 5; ++j108_23) {
        const vec<float, 16> w110_24 = af_load<float, 16>(scores + (j108_23 * 16));
        row105_0 = af_maximum<vec<float, 16>>(row105_0, w110_24);
      }
      vec<float, 16> row111_0;
      row111_0 = af_splat<vec<float, 16>>(0x0.0p+0f);
      for (int64_t j114_25 = 0; j114_25 < 5; ++j114_25) {
        const vec<float, 16> w116_26 = af_exp<vec<float, 16>>((af_load<float, 16>(scores + (j114_25 * 16)) - row105_0));
        row111_0 = (row111_0 + w116_26);
        af_store<float, 16>(scores + (j114_25 * 16), w116_26);
      }
      af_store<float, 16>(divisors + 0, row111_0);
      for (int64_t t119_27 = 0; t119_27 < 4; ++t119_27) {
        vec<float, 16> acc120_0, acc120_1, acc120_2, acc120_3;
        acc120_0 = af_splat<vec<float, 16>>(0x0.0p+0f);
        acc120_1 = af_splat<vec<float, 16>>(0x0.0p+0f);
        acc120_2 = af_splat<vec<float, 16>>(0x0.0p+0f);
        acc120_3 = af_splat<vec<float, 16>>(0x0.0p+0f);
        for (int64_t k123_28 = 0; k123_28 < 2; ++k123_28) {
          const vec<int32_t, 16> t4 = af_below<16>(3);
          const vec<float, 16> b126_29 = af_load_masked<float, 16>(x4 + (k123_28 * 6), t4, 0x0.0p+0f);
          const int64_t t5 = ((k123_28 * 32) + (t119_27 * 4));
          const float a128_30 = scores[t5];
          acc120_0 = (acc120_0 + (af_splat<vec<float, 16>>(a128_30) * b126_29));
          const float a128_31 = scores[(t5 + 1)];
          acc120_1 = (acc120_1 + (af_splat<vec<float, 16>>(a128_31) * b126_29));
          const float a128_32 = scores[(t5 + 2)];
          acc120_2 = (acc120_2 + (af_splat<vec<float, 16>>(a128_32) * b126_29));
          const float a128_33 = scores[(t5 + 3)];
          acc120_3 = (acc120_3 + (af_splat<vec<float, 16>>(a128_33) * b126_29));
          const vec<float, 16> b126_34 = af_load_masked<float, 16>(x4 + ((k123_28 * 6) + 3), t4, 0x0.0p+0f);
          const float a128_35 = scores[(t5 + 16)];
          acc120_0 = (acc120_0 + (af_splat<vec<float, 16>>(a128_35) * b126_34));
          const float a128_36 = scores[(t5 + 17)];
          acc120_1 = (acc120_1 + (af_splat<vec<float, 16>>(a128_36) * b126_34));
          const float a128_37 = scores[(t5 + 18)];
          acc120_2 = (acc120_2 + (af_splat<vec<float, 16>>(a128_37) * b126_34));
          const float a128_38 = scores[(t5 + 19)];
          acc120_3 = (acc120_3 + (af_splat<vec<float, 16>>(a128_38) * b126_34));
        }
        const vec<int32_t, 16> t6 = af_below<16>(3);
        const vec<float, 16> b132_39 = af_load_masked<float, 16>(x4 + 12, t6, 0x0.0p+0f);
        const int64_t t7 = (t119_27 * 4);
        const float a134_40 = scores[(t7 + 64)];
        acc120_0 = (acc120_0 + (af_splat<vec<float, 16>>(a134_40) * b132_39));
        const float a134_41 = scores[(t7 + 65)];
        acc120_1 = (acc120_1 + (af_splat<vec<float, 16>>(a134_41) * b132_39));
        const float a134_42 = scores[(t7 + 66)];
        acc120_2 = (acc120_2 + (af_splat<vec<float, 16>>(a134_42) * b132_39));
        const float a134_43 = scores[(t7 + 67)];
        acc120_3 = (acc120_3 + (af_splat<vec<float, 16>>(a134_43) * b132_39));
        af_store_masked<float, 16>(y0 + (t119_27 * 12), t6, (acc120_0 / af_load_shared<float, 16>(divisors + t7, t6, 0x0.0p+0f)));
        af_store_masked<float, 16>(y0 + ((t119_27 * 12) + 3), t6, (acc120_1 / af_load_shared<float, 16>(divisors + (t7 + 1), t6, 0x0.0p+0f)));
        af_store_masked<float, 16>(y0 + ((t119_27 * 12) + 6), t6, (acc120_2 / af_load_shared<float, 16>(divisors + (t7 + 2), t6, 0x0.0p+0f)));
        af_store_masked<float, 16>(y0 + ((t119_27 * 12) + 9), t6, (acc120_3 / af_load_shared<float, 16>(divisors + (t7 + 3), t6, 0x0.0p+0f)));
      }
    }
    else {
      for (int64_t k0_44 = 0; k0_44 < 3; ++k0_44) {
        const vec<int32_t, 16> t8 = af_below<16>(4);
        af_store<float, 16>(packed + (k0_44 * 16), (t8 ? af_lanes<vec<float, 16>>([&](int64_t l) { const bool t9 = ((l + 16) < 20); return ((t9 ? x1[(((l * 3) + k0_44) + 48)] : 0x0.0p+0f)); }) : af_splat<vec<float, 16>>(0x0.0p+0f)));
      }
      vec<float, 16> acc3_0, acc3_1, acc3_2, acc3_3;
      acc3_0 = af_splat<vec<float, 16>>(0x0.0p+0f);
      acc3_1 = af_splat<vec<float, 16>>(0x0.0p+0f);
      acc3_2 = af_splat<vec<float, 16>>(0x0.0p+0f);
      acc3_3 = af_splat<vec<float, 16>>(0x0.0p+0f);
      const vec<float, 16> t10 = af_load<float, 16>(packed + 0);
      const vec<float, 16> b9_45 = t10;
      const float a11_46 = x0[0];
      acc3_0 = (acc3_0 + (af_splat<vec<float, 16>>(a11_46) * b9_45));
      const float a11_47 = x0[3];
      acc3_1 = (acc3_1 + (af_splat<vec<float, 16>>(a11_47) * b9_45));
      const float a11_48 = x0[6];
      acc3_2 = (acc3_2 + (af_splat<vec<float, 16>>(a11_48) * b9_45));
      const float a11_49 = x0[9];
      acc3_3 = (acc3_3 + (af_splat<vec<float, 16>>(a11_49) * b9_45));
      const vec<float, 16> t11 = af_load<float, 16>(packed + 16);
      const vec<float, 16> b9_50 = t11;
      const float a11_51 = x0[1];
      acc3_0 = (acc3_0 + (af_splat<vec<float, 16>>(a11_51) * b9_50));
      const float a11_52 = x0[4];
      acc3_1 = (acc3_1 + (af_splat<vec<float, 16>>(a11_52) * b9_50));
      const float a11_53 = x0[7];
      acc3_2 = (acc3_2 + (af_splat<vec<float, 16>>(a11_53) * b9_50));
      const float a11_54 = x0[10];
      acc3_3 = (acc3_3 + (af_splat<vec<float, 16>>(a11_54) * b9_50));
      const vec<float, 16> t12 = af_load<float, 16>(packed + 32);
      const vec<float, 16> b15_55 = t12;
      const float a17_56 = x0[2];
      acc3_0 = (acc3_0 + (af_splat<vec<float, 16>>(a17_56) * b15_55));
      const float a17_57 = x0[5];
      acc3_1 = (acc3_1 + (af_splat<vec<float, 16>>(a17_57) * b15_55));
      const float a17_58 = x0[8];
      acc3_2 = (acc3_2 + (af_splat<vec<float, 16>>(a17_58) * b15_55));
      const float a17_59 = x0[11];
      acc3_3 = (acc3_3 + (af_splat<vec<float, 16>>(a17_59) * b15_55));
      const vec<int32_t, 16> t13 = af_below<16>(4);
      const float t14 = x2[0];
      af_store<float, 16>(scores + 0, (t13 ? ((acc3_0 / af_splat<vec<float, 16>>(t14)) + af_splat<vec<float, 16>>(x3[0])) : af_splat<vec<float, 16>>(0x0.0p+0f)));
      af_store<float, 16>(scores + 16, (t13 ? ((acc3_1 / af_splat<vec<float, 16>>(t14)) + af_splat<vec<float, 16>>(x3[1])) : af_splat<vec<float, 16>>(0x0.0p+0f)));
      af_store<float, 16>(scores + 32, (t13 ? ((acc3_2 / af_splat<vec<float, 16>>(t14)) + af_splat<vec<float, 16>>(x3[2])) : af_splat<vec<float, 16>>(0x0.0p+0f)));
      af_store<float, 16>(scores + 48, (t13 ? ((acc3_3 / af_splat<vec<float, 16>>(t14)) + af_splat<vec<float, 16>>(x3[3])) : af_splat<vec<float, 16>>(0x0.0p+0f)));
      vec<float, 16> acc21_0;
      acc21_0 = af_splat<vec<float, 16>>(0x0.0p+0f);
      const vec<float, 16> b27_60 = t10;
      const float a28_61 = x0[12];
      acc21_0 = (acc21_0 + (af_splat<vec<float, 16>>(a28_61) * b27_60));
      const vec<float, 16> b27_62 = t11;
      const float a28_63 = x0[13];
      acc21_0 = (acc21_0 + (af_splat<vec<float, 16>>(a28_63) * b27_62));
      const vec<float, 16> b32_64 = t12;
      const float a33_65 = x0[14];
      acc21_0 = (acc21_0 + (af_splat<vec<float, 16>>(a33_65) * b32_64));
      af_store<float, 16>(scores + 64, (t13 ? ((acc21_0 / af_splat<vec<float, 16>>(t14)) + af_splat<vec<float, 16>>(x3[4])) : af_splat<vec<float, 16>>(0x0.0p+0f)));
      vec<float, 16> row36_0;
      row36_0 = af_splat<vec<float, 16>>(((float)-AF_INF));
      for (int64_t j39_66 = 0; j39_66 < 5; ++j39_66) {
        const vec<float, 16> w41_67 = af_load<float, 16>(scores + (j39_66 * 16));
        row36_0 = af_maximum<vec<float, 16>>(row36_0, w41_67);
      }
      vec<float, 16> row42_0;
      row42_0 = af_splat<vec<float, 16>>(0x0.0p+0f);
      for (int64_t j45_68 = 0; j45_68 < 5; ++j45_68) {
        const vec<float, 16> w47_69 = af_exp<vec<float, 16>>((af_load<float, 16>(scores + (j45_68 * 16)) - row36_0));
        row42_0 = (row42_0 + w47_69);
        af_store<float, 16>(scores + (j45_68 * 16), w47_69);
      }
      af_store<float, 16>(divisors + 0, row42_0);
      vec<float, 16> acc51_0, acc51_1, acc51_2, acc51_3;
      acc51_0 = af_splat<vec<float, 16>>(0x0.0p+0f);
      acc51_1 = af_splat<vec<float, 16>>(0x0.0p+0f);
      acc51_2 = af_splat<vec<float, 16>>(0x0.0p+0f);
      acc51_3 = af_splat<vec<float, 16>>(0x0.0p+0f);
      for (int64_t k54_70 = 0; k54_70 < 2; ++k54_70) {
        const vec<int32_t, 16> t15 = af_below<16>(3);
        const vec<float, 16> b57_71 = af_load_masked<float, 16>(x4 + (k54_70 * 6), t15, 0x0.0p+0f);
        const int64_t t16 = (k54_70 * 32);
        const float a59_72 = scores[t16];
        acc51_0 = (acc51_0 + (af_splat<vec<float, 16>>(a59_72) * b57_71));
        const float a59_73 = scores[(t16 + 1)];
        acc51_1 = (acc51_1 + (af_splat<vec<float, 16>>(a59_73) * b57_71));
        const float a59_74 = scores[(t16 + 2)];
        acc51_2 = (acc51_2 + (af_splat<vec<float, 16>>(a59_74) * b57_71));
        const float a59_75 = scores[(t16 + 3)];
        acc51_3 = (acc51_3 + (af_splat<vec<float, 16>>(a59_75) * b57_71));
        const vec<float, 16> b57_76 = af_load_masked<float, 16>(x4 + ((k54_70 * 6) + 3), t15, 0x0.0p+0f);
        const float a59_77 = scores[(t16 + 16)];
        acc51_0 = (acc51_0 + (af_splat<vec<float, 16>>(a59_77) * b57_76));
        const float a59_78 = scores[(t16 + 17)];
        acc51_1 = (acc51_1 + (af_splat<vec<float, 16>>(a59_78) * b57_76));
        const float a59_79 = scores[(t16 + 18)];
        acc51_2 = (acc51_2 + (af_splat<vec<float, 16>>(a59_79) * b57_76));
        const float a59_80 = scores[(t16 + 19)];
        acc51_3 = (acc51_3 + (af_splat<vec<float, 16>>(a59_80) * b57_76));
      }
      const vec<int32_t, 16> t17 = af_below<16>(3);
      const vec<float, 16> b63_81 = af_load_masked<float, 16>(x4 + 12, t17, 0x0.0p+0f);
      const float a65_82 = scores[64];
      acc51_0 = (acc51_0 + (af_splat<vec<float, 16>>(a65_82) * b63_81));
      const float a65_83 = scores[65];
      acc51_1 = (acc51_1 + (af_splat<vec<float, 16>>(a65_83) * b63_81));
      const float a65_84 = scores[66];
      acc51_2 = (acc51_2 + (af_splat<vec<float, 16>>(a65_84) * b63_81));
      const float a65_85 = scores[67];
      acc51_3 = (acc51_3 + (af_splat<vec<float, 16>>(a65_85) * b63_81));
      af_store_masked<float, 16>(y0 + 48, t17, (acc51_0 / af_load_shared<float, 16>(divisors + 0, t17, 0x0.0p+0f)));
      af_store_masked<float, 16>(y0 + 51, t17, (acc51_1 / af_load_shared<float, 16>(divisors + 1, t17, 0x0.0p+0f)));
      af_store_masked<float, 16>(y0 + 54, t17, (acc51_2 / af_load_shared<float, 16>(divisors + 2, t17, 0x0.0p+0f)));
      af_store_masked<float, 16>(y0 + 57, t17, (acc51_3 / af_load_shared<float, 16>(divisors + 3, t17, 0x0.0p+0f)));
    }
  }
}
