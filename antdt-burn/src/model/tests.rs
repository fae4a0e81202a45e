use antdt_core::Seed;
use burn::tensor::TensorData;
use burn_flex::Flex;

use super::deepfm::DeepFm;
use super::xdeepfm::XDeepFm;
use super::*;
use crate::click::{ClickModel, ModelShape};
use crate::data::LabelKind;
use crate::dropout::Dropout;
use crate::flat::{self, FlatLayout};

const SAMPLES: usize = 3;

fn shape() -> ModelShape {
    ModelShape {
        fields: 5,
        embedding: 2,
        hidden: vec![4, 3],
        cin: vec![3, 2],
        dropout: 0.0,
        label: LabelKind::Binary,
    }
}

/// The same for labels of three classes.
fn shape_of_classes() -> ModelShape {
    ModelShape { label: LabelKind::Classes(3), ..shape() }
}

/// The formulas, value by value in double precision, reading parameters in the order of the flat vector.
struct Oracle<'a> {
    rest: &'a [f32],
}

impl Oracle<'_> {
    fn take(&mut self, count: usize) -> Vec<f64> {
        let (values, rest) = self.rest.split_at(count);
        self.rest = rest;
        values.iter().map(|value| f64::from(*value)).collect()
    }

    fn perceptron(&mut self, input: &[f64], hidden: &[usize]) -> f64 {
        self.perceptron_of(input, hidden, 1)[0]
    }

    fn perceptron_of(&mut self, input: &[f64], hidden: &[usize], outputs: usize) -> Vec<f64> {
        let mut values = input.to_vec();
        for (layer, units) in hidden.iter().chain(&[outputs]).enumerate() {
            let (weights, bias) = (self.take(values.len() * units), self.take(*units));
            let is_hidden = layer < hidden.len();
            values = (0..*units)
                .map(|unit| {
                    let sum: f64 =
                        values.iter().enumerate().map(|(i, x)| x * weights[i * units + unit]).sum();
                    if is_hidden { (sum + bias[unit]).max(0.0) } else { sum + bias[unit] }
                })
                .collect();
        }
        values
    }

    /// A matrix of weights `[inputs, outputs]`, and what it makes of these inputs.
    fn linear(&mut self, input: &[f64], outputs: usize) -> Vec<f64> {
        let weights = self.take(input.len() * outputs);
        let sum = |k: usize| input.iter().enumerate().map(|(at, x)| x * weights[at * outputs + k]).sum();
        (0..outputs).map(sum).collect()
    }

    /// The CIN's part of the logit for one sample, `[fields][embedding]`.
    fn cin(&mut self, base: &[Vec<f64>], layers: &[usize]) -> f64 {
        self.cin_of(base, layers, 1)[0]
    }

    fn cin_of(&mut self, base: &[Vec<f64>], layers: &[usize], outputs: usize) -> Vec<f64> {
        let (mut maps, mut sums) = (base.to_vec(), Vec::new());
        for next in layers {
            let weights = self.take(base.len() * maps.len() * next);
            let weight = |j: usize, i: usize, h: usize| weights[(j * maps.len() + i) * next + h];
            maps = (0..*next)
                .map(|h| {
                    (0..base[0].len())
                        .map(|d| {
                            let pairs = (0..base.len()).flat_map(|j| (0..maps.len()).map(move |i| (j, i)));
                            pairs
                                .map(|(j, i)| weight(j, i, h) * maps[i][d] * base[j][d])
                                .sum::<f64>()
                                .max(0.0)
                        })
                        .collect()
                })
                .collect();
            sums.extend(maps.iter().map(|map: &Vec<f64>| map.iter().sum::<f64>()));
        }
        self.linear(&sums, outputs)
    }
}

/// Parameters and table rows, and the logits that the model gives for them.
fn logits_of<M: ClickModel<Flex>>(model: M) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let device = Default::default();
    let layout = FlatLayout::of::<Flex, M>(&model);
    let mut rng = Seed(6).rng();
    let mut draw = |count: usize| (0..count).map(|_| rng.normal() as f32).collect::<Vec<_>>();
    let flat = draw(layout.len());
    let rows = draw(SAMPLES * shape().fields * shape().row_dim());
    let data = TensorData::new(rows.clone(), [SAMPLES, shape().fields, shape().row_dim()]);
    let logits = flat::load::<Flex, M>(model, &flat, &device)
        .logits(Tensor::from_data(data, &device), &mut Dropout::none());
    (flat, rows, logits.into_data().to_vec().unwrap())
}

/// Compares each sample's logit with what `rest_of_logit` adds to its first-order weights.
fn compare(rows: &[f32], logits: &[f32], mut rest_of_logit: impl FnMut(&[Vec<f64>]) -> f64) {
    let shape = shape();
    for (sample, logit) in rows.chunks(shape.fields * shape.row_dim()).zip(logits) {
        let fields: Vec<Vec<f64>> = sample
            .chunks(shape.row_dim())
            .map(|row| row.iter().map(|value| f64::from(*value)).collect())
            .collect();
        let first_order: f64 = fields.iter().map(|row| row[shape.embedding]).sum();
        let embedded: Vec<Vec<f64>> = fields.iter().map(|row| row[..shape.embedding].to_vec()).collect();
        let expected = first_order + rest_of_logit(&embedded);
        let error = (expected - f64::from(*logit)).abs();
        assert!(error < 1e-4 * (1.0 + expected.abs()), "logit {logit}, by the formula {expected}");
    }
}

#[test]
fn deepfm_is_its_formula() {
    let (flat, rows, logits) = logits_of(DeepFm::<Flex>::new(&shape(), &Default::default()));
    compare(&rows, &logits, |embedded| {
        let mut pairs = 0.0;
        for (f, v) in embedded.iter().enumerate() {
            for w in &embedded[..f] {
                pairs += v.iter().zip(w).map(|(v, w)| v * w).sum::<f64>();
            }
        }
        pairs + Oracle { rest: &flat }.perceptron(&embedded.concat(), &shape().hidden)
    });
}

#[test]
fn xdeepfm_is_its_formula() {
    let (flat, rows, logits) = logits_of(XDeepFm::<Flex>::new(&shape(), &Default::default()));
    compare(&rows, &logits, |embedded| {
        let mut oracle = Oracle { rest: &flat };
        let explicit = oracle.cin(embedded, &shape().cin);
        let deep = oracle.perceptron(&embedded.concat(), &shape().hidden);
        assert!(oracle.rest.is_empty(), "{} parameters are not used", oracle.rest.len());
        explicit + deep
    });
}

/// Compares the logits of each sample with those that `logits_of` gives for its rows, `[fields][embedding + 1]`.
fn compare_classes(rows: &[f32], logits: &[f32], logits_of: impl Fn(&[Vec<f64>]) -> Vec<f64>) {
    let shape = shape();
    for (sample, found) in rows.chunks(shape.fields * shape.row_dim()).zip(logits.chunks(3)) {
        let row = |row: &[f32]| row.iter().map(|value| f64::from(*value)).collect();
        let fields: Vec<Vec<f64>> = sample.chunks(shape.row_dim()).map(row).collect();
        for (found, expected) in found.iter().zip(logits_of(&fields)) {
            let error = (expected - f64::from(*found)).abs();
            assert!(error < 1e-4 * (1.0 + expected.abs()), "logit {found}, by the formula {expected}");
        }
    }
}

/// The sums of these logits, class by class.
fn sums(parts: &[Vec<f64>; 3]) -> Vec<f64> {
    (0..3).map(|class| parts.iter().map(|part| part[class]).sum()).collect()
}

#[test]
fn deepfm_of_classes_is_its_formula() {
    let (flat, rows, logits) = logits_of(DeepFm::<Flex>::new(&shape_of_classes(), &Default::default()));
    assert_eq!(logits.len(), 3 * SAMPLES);
    compare_classes(&rows, &logits, |fields| {
        let embedded: Vec<Vec<f64>> = fields.iter().map(|row| row[..2].to_vec()).collect();
        let mut pairs = [0.0; 2];
        for (f, v) in embedded.iter().enumerate() {
            for w in &embedded[..f] {
                pairs.iter_mut().enumerate().for_each(|(d, pair)| *pair += v[d] * w[d]);
            }
        }
        let mut oracle = Oracle { rest: &flat };
        let deep = oracle.perceptron_of(&embedded.concat(), &shape().hidden, 3);
        let parts = [deep, oracle.linear(&fields.concat(), 3), oracle.linear(&pairs, 3)];
        assert!(oracle.rest.is_empty(), "{} parameters are not used", oracle.rest.len());
        sums(&parts)
    });
}

#[test]
fn xdeepfm_of_classes_is_its_formula() {
    let (flat, rows, logits) = logits_of(XDeepFm::<Flex>::new(&shape_of_classes(), &Default::default()));
    compare_classes(&rows, &logits, |fields| {
        let embedded: Vec<Vec<f64>> = fields.iter().map(|row| row[..2].to_vec()).collect();
        let mut oracle = Oracle { rest: &flat };
        let explicit = oracle.cin_of(&embedded, &shape().cin, 3);
        let deep = oracle.perceptron_of(&embedded.concat(), &shape().hidden, 3);
        sums(&[explicit, deep, oracle.linear(&fields.concat(), 3)])
    });
}

#[test]
fn every_model_is_built_with_its_defaults_and_says_them() {
    for model in SHIPPED {
        let recipe = REGISTRY.by_name(model.name).unwrap();
        assert!(recipe.learning_rate > 0.0, "{}", model.name);
        for setting in (model.settings)() {
            let texts = [(setting.name.to_owned(), setting.default.clone())].into();
            assert!(REGISTRY.build(model.name, &texts).is_ok(), "{}: {setting:?}", model.name);
        }
    }
    let error = REGISTRY.by_name("deepmf").unwrap_err().to_string();
    assert!(error.contains("did you mean `deepfm`?"), "{error}");
}

#[test]
fn a_size_that_cannot_be_is_refused_by_table_and_key() {
    for (model, setting, texts) in [
        ("deepfm", "rows-per-field", &["0", "2000000000000", "many"][..]),
        ("deepfm", "embedding", &["0", "65537", "-1"]),
        ("deepfm", "cin", &["16"]),
        ("xdeepfm", "hidden", &["4,0", "4,,5", "4;5", "64,x"]),
        ("xdeepfm", "cin", &["", "0"]),
        ("mlp", "features", &["0", "1.5"]),
        ("mlp", "hidden", &["0", "65537"]),
        ("logistic", "features", &["0"]),
        ("logistic", "hidden", &["4"]),
        ("gpt", "context", &["0", "long"]),
        ("gpt", "heads", &["0", "3"]),
        ("resnet20", "norm", &["layer", ""]),
        ("resnet20", "side", &["3", "2000"]),
        ("mobilenet", "width", &["0"]),
    ] {
        for text in texts {
            let texts = [(setting.to_owned(), (*text).to_owned())].into();
            let error = REGISTRY.build(model, &texts).unwrap_err().to_string();
            assert!(error.starts_with(&format!("[workload.{model}] {setting} = ")), "{error}");
        }
    }
    let none = [("hidden".to_owned(), String::new())].into();
    assert!(REGISTRY.build("mlp", &none).is_ok(), "a perceptron without hidden layers is one");
}

#[test]
fn the_default_perceptron_is_a_megabyte() {
    let mlp = mlp::Mlp::<Flex>::new(256, &[384, 384], 10, &Default::default());
    assert_eq!(FlatLayout::of::<Flex, _>(&mlp).len(), 250_378);
}
