//! The gRPC service over the handles of its data sets.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::port::{ACKS_MAX, WANT_MAX};
use antdt_core::{Ack, Epoch, Generation, Held, Holder, InvalidValue, RequestId};
use antdt_proto::WireError;
use antdt_proto::convert::required;
use antdt_proto::v1;
use tonic::{Request, Response, Status};

use crate::error::SourceError;
use crate::ledger::LedgerStatus;
use crate::runtime::catalog::{Catalog, CatalogError};
use crate::runtime::service::ShardHandle;
use crate::runtime::status::to_status;
use crate::runtime::wire;
use crate::spec::WAIT_MAX;

/// Shards that a question after missing samples may be about.
const MISSING_SHARDS_MAX: u32 = 1 << 12;

/// Ranges in its answer at most: a shard of which a part is done in shuffled order can be missing in very many pieces.
const MISSING_RANGES_MAX: usize = 1 << 16;

/// The gRPC service of any number of data sets by name: some added [by the program](Self::with), others from
/// a [`Catalog`], in which clients may open more. It answers with these status codes:
///
/// | code | when | the client |
/// |---|---|---|
/// | `FAILED_PRECONDITION` | a new generation, or never registered | registers and presents its leases |
/// | `PERMISSION_DENIED` | the holder is fenced | exits |
/// | `DATA_LOSS` | too many samples are quarantined | exits |
/// | `NOT_FOUND` | no such data set | aborts |
/// | `ALREADY_EXISTS` | the data set is open with other settings | aborts |
/// | `RESOURCE_EXHAUSTED` | too many data sets | aborts |
/// | `UNIMPLEMENTED` | a data set is to be opened and there is no catalog | aborts |
/// | `INVALID_ARGUMENT` | a malformed or wrong request, or more in one than is served | aborts |
/// | `UNAVAILABLE` | the task of the data set has ended | tries again |
/// | `INTERNAL` | the store of a data set that is to be opened failed | tries again |
#[derive(Debug, Default)]
pub struct ShardServer {
    datasets: BTreeMap<String, ShardHandle>,
    catalog: Option<Catalog>,
}

impl ShardServer {
    /// Returns a server without data sets.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a data set under the name in its settings.
    ///
    /// # Errors
    /// If the server has a data set of that name already.
    pub fn with(mut self, handle: ShardHandle) -> Result<Self, InvalidValue> {
        let name = handle.dataset().to_owned();
        if self.datasets.contains_key(&name) {
            return Err(InvalidValue::new(
                "dataset",
                name,
                "another name than that of a data set already served",
            ));
        }
        self.datasets.insert(name, handle);
        Ok(self)
    }

    /// Also serves the data sets of the catalog, and lets clients open more there. A data set that was added
    /// [by the program](Self::with) hides one of the same name in the catalog.
    pub fn with_catalog(mut self, catalog: Catalog) -> Self {
        self.catalog = Some(catalog);
        self
    }

    /// Converts the server into a service for a tonic server.
    pub fn into_service(self) -> v1::shard_server::ShardServer<Self> {
        v1::shard_server::ShardServer::new(self)
    }

    fn dataset(&self, name: &str) -> Result<ShardHandle, Status> {
        if let Some(handle) = self.datasets.get(name) {
            return Ok(handle.clone());
        }
        let unknown = || CatalogError::UnknownDataset { name: name.to_owned(), known: self.names() };
        let found = self.catalog.as_ref().map_or_else(|| Err(unknown()), |catalog| catalog.get(name));
        found.map_err(|error| match error {
            // Those that were given by themselves are known too.
            CatalogError::UnknownDataset { .. } => catalog_status(&unknown()),
            error => catalog_status(&error),
        })
    }

    /// Returns the names of the data sets.
    fn names(&self) -> Vec<String> {
        let catalog = self.catalog.as_ref().map(Catalog::names).unwrap_or_default();
        let mut names: Vec<String> = self.datasets.keys().cloned().chain(catalog).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

fn catalog_status(error: &CatalogError) -> Status {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    match error {
        CatalogError::Spec(_) => Status::invalid_argument(text),
        CatalogError::SpecMismatch { .. } => Status::already_exists(text),
        CatalogError::UnknownDataset { .. } => Status::not_found(text),
        CatalogError::TooMany { .. } => Status::resource_exhausted(text),
        CatalogError::ShutDown { .. } => Status::unavailable(text),
        CatalogError::Store { .. } | CatalogError::Service(_) => Status::internal(text),
    }
}

fn refused(error: &InvalidValue) -> Status {
    Status::invalid_argument(error.to_string())
}

fn at_most(field: &str, given: u64, most: u64) -> Result<(), Status> {
    if given <= most {
        return Ok(());
    }
    Err(refused(&InvalidValue::new(field, given, format!("at most {most} in one call; make several"))))
}

fn wait(wait_ns: u64) -> Result<Duration, Status> {
    let wait = Duration::from_nanos(wait_ns);
    if wait <= WAIT_MAX {
        return Ok(wait);
    }
    let expected = format!("at most {} ({WAIT_MAX:?}); ask again after it", WAIT_MAX.as_nanos());
    Err(refused(&InvalidValue::new("wait_ns", wait_ns, expected)))
}

fn dataset_status(name: String, status: Result<LedgerStatus, SourceError>) -> v1::DatasetStatus {
    use v1::dataset_status::State;
    let state = match status {
        Ok(status) => State::Serving(wire::status_out(status)),
        Err(ended) => State::Ended(ended.to_string()),
    };
    v1::DatasetStatus { dataset: name, state: Some(state) }
}

fn holder(wire: Option<v1::Holder>) -> Result<Holder, WireError> {
    required("holder", wire)?.try_into()
}

fn acks(wire: Vec<v1::Ack>) -> Result<Vec<Ack>, Status> {
    at_most("acks", wire.len() as u64, ACKS_MAX as u64)?;
    Ok(wire.into_iter().map(Ack::try_from).collect::<Result<_, _>>()?)
}

#[tonic::async_trait]
impl v1::shard_server::Shard for ShardServer {
    async fn register(
        &self,
        request: Request<v1::RegisterShardsRequest>,
    ) -> Result<Response<v1::RegisterShardsReply>, Status> {
        let request = request.into_inner();
        let dataset = self.dataset(&request.dataset)?;
        at_most("held", request.held.len() as u64, ACKS_MAX as u64)?;
        let held = request.held.into_iter().map(Held::try_from).collect::<Result<_, _>>()?;
        let registered = dataset.register(holder(request.holder)?, held).await.map_err(to_status)?;
        Ok(Response::new(registered.into()))
    }

    async fn exchange(
        &self,
        request: Request<v1::ExchangeRequest>,
    ) -> Result<Response<v1::ExchangeReply>, Status> {
        let request = request.into_inner();
        let dataset = self.dataset(&request.dataset)?;
        let holder = holder(request.holder)?;
        let (generation, id) = (Generation(request.generation), RequestId(request.request));
        let (acks, wait) = (acks(request.acks)?, wait(request.wait_ns)?);
        at_most("want", request.want.into(), WANT_MAX.into())?;
        let exchanged = dataset.exchange(holder, generation, id, acks.into(), request.want, wait).await;
        Ok(Response::new(exchanged.map_err(to_status)?.into()))
    }

    // The generation of the two requests below is not looked at: every lease carries its own, and one of an
    // earlier generation is answered as stale.
    async fn release(
        &self,
        request: Request<v1::ReleaseRequest>,
    ) -> Result<Response<v1::ReleaseReply>, Status> {
        let request = request.into_inner();
        let dataset = self.dataset(&request.dataset)?;
        let outcomes =
            dataset.release(holder(request.holder)?, acks(request.acks)?).await.map_err(to_status)?;
        Ok(Response::new(release_reply(outcomes)))
    }

    async fn fail(&self, request: Request<v1::FailRequest>) -> Result<Response<v1::FailReply>, Status> {
        let request = request.into_inner();
        let dataset = self.dataset(&request.dataset)?;
        let ack = required("ack", request.ack)?.try_into()?;
        let outcome = dataset.fail(holder(request.holder)?, ack, &request.why).await.map_err(to_status)?;
        Ok(Response::new(v1::FailReply { outcome: v1::AckOutcome::from(outcome).into() }))
    }

    async fn open(&self, request: Request<v1::OpenRequest>) -> Result<Response<v1::OpenReply>, Status> {
        let Some(catalog) = &self.catalog else {
            return Err(Status::unimplemented("this service opens no data sets; take one of those it has"));
        };
        let spec = required("spec", request.into_inner().spec)?;
        let spec = wire::spec_in(spec).map_err(|e| refused(&e))?;
        let handle = catalog.open(spec).await.map_err(|e| catalog_status(&e))?;
        let status = handle.status().await.map_err(to_status)?;
        Ok(Response::new(v1::OpenReply { status: Some(wire::status_out(status)) }))
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Result<Response<v1::StatusReply>, Status> {
        let asked = request.into_inner().dataset;
        let names = if asked.is_empty() { self.names() } else { vec![asked] };
        let mut datasets = Vec::with_capacity(names.len());
        for name in names {
            let status = self.dataset(&name)?.status().await;
            datasets.push(dataset_status(name, status));
        }
        Ok(Response::new(v1::StatusReply { datasets }))
    }

    async fn missing(
        &self,
        request: Request<v1::MissingRequest>,
    ) -> Result<Response<v1::MissingReply>, Status> {
        let v1::MissingRequest { dataset, epoch, shards } = request.into_inner();
        let dataset = self.dataset(&dataset)?;
        at_most("shards", shards.into(), MISSING_SHARDS_MAX.into())?;
        let epoch = Epoch(epoch);
        let Some(counts) = dataset.epoch_counts(epoch).await.map_err(to_status)? else {
            return Err(refused(&InvalidValue::new("epoch", epoch, "one of the data set's epochs, from 0")));
        };
        let missing = dataset.missing(epoch, shards as usize).await.map_err(to_status)?;
        Ok(Response::new(v1::MissingReply {
            samples: counts.total - counts.acked,
            ranges: missing.iter().take(MISSING_RANGES_MAX).map(wire::missing_out).collect(),
        }))
    }
}

fn release_reply(outcomes: Vec<antdt_core::AckOutcome>) -> v1::ReleaseReply {
    let outcomes = outcomes.into_iter().map(|outcome| v1::AckOutcome::from(outcome).into()).collect();
    v1::ReleaseReply { outcomes }
}

#[cfg(test)]
mod tests;
