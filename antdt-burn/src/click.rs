//! Click-through models: embedded fields of a row in, one logit out, or one for each class.
//!
//! A row of the table holds a field's embedding and, as its last value, its first-order weight. Where a model tells more than two classes
//! apart, each class weighs the values of these rows by field, so that the table does not grow with the classes.

use antdt_core::InvalidValue;
use antdt_core::registry::{Setting, SettingSet, Settings};
use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::data::LabelKind;
use crate::device::Device;
use crate::dropout::{self, Dropout};
use crate::engine::Engine;
use crate::model::{Recipe, Task};
use crate::size::{self, Sizes};

/// Default optimizer of click-through models. Its rate for a row falls with the row's own gradients, which
/// suits rows that are touched by different numbers of samples.
pub const OPTIMIZER: &str = "adagrad";

/// Default learning rate of click-through models, for the optimizer `adagrad`.
pub const LEARNING_RATE: f32 = 0.02;

/// Default weight decay of click-through models, for the optimizer `adagrad`. Without any, a second epoch on
/// few rows makes the model worse: on 1,500 rows of Criteo's the held-out AUC after three epochs is 0.593,
/// with this value 0.613, and with 0.01 0.638; on UCI Adult it is 0.9215, 0.9175 and 0.9090.
pub const WEIGHT_DECAY: f32 = 0.003;

/// Sizes of the layers of a click-through model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelShape {
    /// Number of fields of a sample.
    pub fields: usize,
    /// Number of values of an embedding, without the first-order weight.
    pub embedding: usize,
    /// Number of units of each hidden layer of the multi-layer perceptron.
    pub hidden: Vec<usize>,
    /// Number of feature maps of each layer of the compressed interaction network; only xDeepFM has one.
    pub cin: Vec<usize>,
    /// Share of the units of each hidden layer of the perceptron that a training step leaves out; at least 0 and below 1.
    pub dropout: f32,
    /// What the labels are, which says what the loss is and how many values the model predicts for a sample.
    pub label: LabelKind,
}

impl ModelShape {
    /// Returns the number of values that the model predicts for a sample.
    pub const fn outputs(&self) -> usize {
        self.label.outputs()
    }

    /// Returns the number of values of a table row: the embedding, then the first-order weight.
    pub const fn row_dim(&self) -> usize {
        self.embedding + 1
    }
}

/// A model that predicts click-through rates, classes or numbers.
pub trait ClickModel<B: Backend>: Module<B> {
    /// Returns the logits `[samples, outputs]`, or numbers, for the table rows `[samples, fields, embedding + 1]` of the samples.
    fn logits(&self, rows: Tensor<B, 3>, dropout: &mut Dropout) -> Tensor<B, 2>;
}

/// Splits table rows `[samples, fields, embedding + 1]` into embeddings `[samples, fields, embedding]` and the sum of
/// the first-order weights `[samples, 1]`.
pub(crate) fn split_rows<B: Backend>(rows: Tensor<B, 3>) -> (Tensor<B, 3>, Tensor<B, 2>) {
    let [samples, _, dim] = rows.dims();
    let first_order = rows.clone().narrow(2, dim - 1, 1).sum_dim(1).reshape([samples, 1]);
    (rows.narrow(2, 0, dim - 1), first_order)
}

/// What the number of rows must be: it keeps row numbers, and the index of touched rows, far from overflow.
const ROWS: &str = "a whole number between 1 and 2^40";

antdt_core::settings! {
    /// Sizes that users choose; the number of fields is the data's.
    #[derive(Debug, Clone, PartialEq)]
    pub(crate) struct ClickSizes {
        /// The default keeps the collisions of a column with a thousand categories to 6 %; 39 such fields take 46 MB with
        /// their optimizer state.
        rows_per_field: u64 = 1 << 14, "rows of the embedding table for each column",
            ROWS, if |rows| (1..=1 << 40).contains(&rows);
        /// The default is small enough for a step of a few milliseconds on one core.
        embedding: usize = 8, "values of an embedding", size::EXPECTED, if |values| size::fits(values);
        hidden: Sizes = Sizes(vec![64, 32]), "units of each hidden layer of the perceptron",
            Sizes::EXPECTED, if |layers| layers.fit();
        /// Empty for a model that has no such network.
        cin: Sizes = Sizes(vec![16, 16]), "feature maps of each layer of the compressed interaction network",
            Sizes::EXPECTED, if |layers| layers.fit();
        dropout: f32 = 0.0, "share of each hidden layer that a training step leaves out",
            dropout::EXPECTED, if |share| dropout::fits(share);
    }
}

impl ClickSizes {
    /// The sizes of a model with a compressed interaction network.
    pub(crate) fn with_cin(settings: &Settings<'_>) -> Result<Self, InvalidValue> {
        let sizes: Self = settings.read()?;
        if sizes.cin.0.is_empty() {
            return Err(settings.refuse(
                "cin",
                &sizes.cin,
                "one or more layers of at least 1, such as 16,16",
            ));
        }
        Ok(sizes)
    }

    /// The sizes of a model without a compressed interaction network.
    pub(crate) fn without_cin(settings: &Settings<'_>) -> Result<Self, InvalidValue> {
        Self { cin: Sizes(Vec::new()), ..Self::default() }.read_over(settings)
    }

    /// The settings of a model without a compressed interaction network.
    pub(crate) fn defaults_without_cin() -> Vec<Setting> {
        Self::defaults().into_iter().filter(|setting| setting.name != "cin").collect()
    }

    /// The model of these sizes.
    pub(crate) fn recipe(self, build: fn(&ModelShape, Device) -> Box<dyn Engine>) -> Recipe {
        let task = Task::Click(ClickRecipe { sizes: self, build });
        Recipe { optimizer: OPTIMIZER, learning_rate: LEARNING_RATE, weight_decay: WEIGHT_DECAY, task }
    }
}

/// A click-through model and its sizes.
#[derive(Debug)]
pub(crate) struct ClickRecipe {
    sizes: ClickSizes,
    build: fn(&ModelShape, Device) -> Box<dyn Engine>,
}

impl ClickRecipe {
    pub(crate) const fn rows_per_field(&self) -> u64 {
        self.sizes.rows_per_field
    }

    /// The sizes of the model's layers for samples of so many fields with such labels.
    pub(crate) fn shape(&self, fields: usize, label: LabelKind) -> ModelShape {
        let ClickSizes { embedding, hidden, cin, dropout, .. } = self.sizes.clone();
        ModelShape { fields, embedding, hidden: hidden.0, cin: cin.0, dropout, label }
    }

    /// Builds the model on a device.
    pub(crate) fn build(&self, shape: &ModelShape, device: Device) -> Box<dyn Engine> {
        (self.build)(shape, device)
    }
}
