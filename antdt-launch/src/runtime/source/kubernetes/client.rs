//! Carries out what the book of pods asks for, and tells it what the API server shows.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, Error};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::access;
use super::book::{BookEffect, PodBook};
use super::manifest::{JOB_LABEL, PodRecipe};
use super::view::view;
use crate::runtime::source::{HostEvent, HostEventSink, HostRequest};

/// How long one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// Pause between two attempts to reach the API server, and between two lists at least.
const RETRY: Duration = Duration::from_secs(1);

/// How long pods may take to be gone when the job is over, beyond which they go with their owner.
const LEAVE_LIMIT: Duration = Duration::from_secs(20);

/// What the source is asked for.
#[derive(Debug)]
pub(super) enum PodCommand {
    Start(HostRequest),
    Stop(String),
    /// Delete everything, and say when it is gone.
    Close(oneshot::Sender<()>),
}

/// Where the pods are, and with what rights.
#[derive(Debug, Clone)]
pub(super) struct PodPlace {
    /// `None` for that of the service account.
    pub(super) namespace: Option<String>,
    /// Name of the pod of this process.
    pub(super) own_pod: String,
}

/// A call that has ended.
enum Called {
    Created { pod: String, result: Result<(), Trouble> },
    Deleted { pod: String, at_once: bool, result: Result<(), Trouble> },
}

/// Why a call came to nothing.
struct Trouble {
    why: String,
    is_final: bool,
}

impl Trouble {
    fn of(error: &Error) -> Self {
        match error {
            Error::Api(status) => Self {
                why: access::denied(&status.message).unwrap_or_else(|| status.message.clone()),
                is_final: access::is_final(status.code, &status.message),
            },
            other => Self { why: format!("the API server is not reached: {other}"), is_final: false },
        }
    }

    fn silent() -> Self {
        Self { why: format!("the API server does not answer within {CALL_LIMIT:?}"), is_final: false }
    }
}

/// Waits for a call, for as long as one may take.
async fn called<T>(call: impl Future<Output = Result<T, Error>>) -> Result<T, Trouble> {
    match timeout(CALL_LIMIT, call).await {
        Ok(done) => done.map_err(|error| Trouble::of(&error)),
        Err(_) => Err(Trouble::silent()),
    }
}

/// Serves commands until there is nobody left who gives any.
pub(super) async fn serve(
    recipe: PodRecipe,
    place: PodPlace,
    mut commands: mpsc::UnboundedReceiver<PodCommand>,
    events: HostEventSink,
) {
    let mut said = None;
    let opened = loop {
        match open(&place).await {
            Ok(opened) => break opened,
            Err(Trouble { why, is_final: true }) => {
                events(HostEvent::Failed { why });
                return refuse(commands).await;
            }
            Err(Trouble { why, .. }) => {
                if said.as_ref() != Some(&why) {
                    events(HostEvent::Notice { line: why.clone() });
                    said = Some(why);
                }
                tokio::select! {
                    () = sleep(RETRY) => {}
                    // Nothing was created.
                    closed = closing(&mut commands) => return drop(closed),
                }
            }
        }
    };
    let (pods, owner) = opened;
    let book = PodBook::new(&recipe.job);
    let server =
        PodServer { recipe: Arc::new(recipe), pods, owner, book, events, calls: JoinSet::new(), said };
    server.run(commands).await;
}

/// Answers what comes after a failure for good: there is nothing to be done.
async fn refuse(mut commands: mpsc::UnboundedReceiver<PodCommand>) {
    drop(closing(&mut commands).await);
}

/// Waits until all is to be closed, or nobody is left to say so.
async fn closing(commands: &mut mpsc::UnboundedReceiver<PodCommand>) -> Option<oneshot::Sender<()>> {
    loop {
        match commands.recv().await {
            Some(PodCommand::Close(done)) => return Some(done),
            Some(PodCommand::Start(_) | PodCommand::Stop(_)) => {}
            None => return None,
        }
    }
}

/// Connects to the API server, checks the permissions, and finds the object that the pods belong to.
async fn open(place: &PodPlace) -> Result<(Api<Pod>, OwnerReference), Trouble> {
    let is_final = true;
    let client = Client::try_default().await.map_err(|error| Trouble {
        why: format!(
            "no Kubernetes cluster is known to this process: {error}; is it in a pod with a service account?"
        ),
        is_final,
    })?;
    let namespace = place.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    for verb in access::VERBS {
        check(&client, verb, &namespace).await?;
    }
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let Some(own) = called(pods.get_opt(&place.own_pod)).await? else {
        let why = format!(
            "pod {} is not in namespace {namespace}: set POD_NAME to the name of the pod that antdt run is in, which hosts end with",
            place.own_pod
        );
        return Err(Trouble { why, is_final });
    };
    let owners = own.metadata.owner_references.unwrap_or_default();
    let controller = owners.into_iter().find(|owner| owner.controller == Some(true));
    let owner = controller.unwrap_or_else(|| OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: place.own_pod.clone(),
        uid: own.metadata.uid.unwrap_or_default(),
        ..OwnerReference::default()
    });
    // It is none of what the owner itself starts and counts.
    Ok((pods, OwnerReference { controller: None, block_owner_deletion: None, ..owner }))
}

async fn check(client: &Client, verb: &str, namespace: &str) -> Result<(), Trouble> {
    let attributes = ResourceAttributes {
        namespace: Some(namespace.to_owned()),
        resource: Some("pods".to_owned()),
        verb: Some(verb.to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let post = PostParams::default();
    let answer = match called(reviews.create(&post, &review)).await {
        Ok(review) => review.status,
        // Who may not ask finds out by the call itself.
        Err(Trouble { is_final: true, .. }) => return Ok(()),
        Err(trouble) => return Err(trouble),
    };
    match answer.is_some_and(|answer| answer.allowed) {
        true => Ok(()),
        false => Err(Trouble { why: access::missing(verb, "pods", namespace, None), is_final: true }),
    }
}

struct PodServer {
    recipe: Arc<PodRecipe>,
    pods: Api<Pod>,
    owner: OwnerReference,
    book: PodBook,
    events: HostEventSink,
    calls: JoinSet<Called>,
    /// The last trouble that was said.
    said: Option<String>,
}

impl PodServer {
    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<PodCommand>) {
        loop {
            let watched = self.watch(&mut commands).await;
            match watched {
                Watched::Closing(done) => return self.close(done).await,
                Watched::Left => return,
                Watched::Broken(trouble) => {
                    if let Some(Trouble { why, .. }) = trouble {
                        self.complain(why);
                    }
                    let until = Instant::now() + RETRY;
                    loop {
                        tokio::select! {
                            () = sleep_until(until) => break,
                            command = commands.recv() => match command {
                                Some(PodCommand::Close(done)) => return self.close(Some(done)).await,
                                Some(command) => self.heed(command),
                                None => return,
                            },
                            Some(Ok(called)) = self.calls.join_next() => self.hear(called),
                        }
                    }
                }
            }
        }
    }

    fn complain(&mut self, why: String) {
        if self.said.as_ref() != Some(&why) {
            (self.events)(HostEvent::Notice { line: why.clone() });
            self.said = Some(why);
        }
    }

    fn selector(&self) -> String {
        format!("{JOB_LABEL}={},{}", self.recipe.job, super::manifest::HOST_LABEL)
    }

    /// Lists the pods, and follows them until that ends.
    async fn watch(&mut self, commands: &mut mpsc::UnboundedReceiver<PodCommand>) -> Watched {
        let list = called(self.pods.list(&ListParams::default().labels(&self.selector()))).await;
        let list = match list {
            Ok(list) => list,
            Err(trouble) => return Watched::Broken(Some(trouble)),
        };
        let effects = self.book.listed(list.items.iter().filter_map(view).collect());
        self.apply(effects);
        let version = list.metadata.resource_version.unwrap_or_default();
        let params = WatchParams::default().labels(&self.selector());
        let stream = match called(self.pods.watch(&params, &version)).await {
            Ok(stream) => stream,
            Err(trouble) => return Watched::Broken(Some(trouble)),
        };
        let mut stream = pin!(stream);
        self.said = None;
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(PodCommand::Close(done)) => return Watched::Closing(Some(done)),
                    Some(command) => self.heed(command),
                    None => return Watched::Left,
                },
                event = stream.next() => match event {
                    Some(Ok(event)) => {
                        if !self.see(event) {
                            return Watched::Broken(None);
                        }
                    }
                    // It ends after some minutes in any case.
                    Some(Err(_)) | None => return Watched::Broken(None),
                },
                Some(Ok(called)) = self.calls.join_next() => self.hear(called),
            }
        }
    }

    /// Takes in a change; `false` if the changes cannot be followed any more.
    fn see(&mut self, event: WatchEvent<Pod>) -> bool {
        let effects = match event {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                view(&pod).map(|pod| self.book.seen(pod)).unwrap_or_default()
            }
            WatchEvent::Deleted(pod) => {
                // Its last state may say why.
                let last = view(&pod).map(|pod| self.book.seen(pod)).unwrap_or_default();
                let gone = pod.metadata.name.map(|name| self.book.gone(&name)).unwrap_or_default();
                last.into_iter().chain(gone).collect()
            }
            WatchEvent::Bookmark(_) => Vec::new(),
            WatchEvent::Error(_) => return false,
        };
        self.apply(effects);
        true
    }

    fn heed(&mut self, command: PodCommand) {
        let effects = match command {
            PodCommand::Start(request) => self.book.start(&request),
            PodCommand::Stop(host) => self.book.stop(&host),
            PodCommand::Close(_) => Vec::new(),
        };
        self.apply(effects);
    }

    fn apply(&mut self, effects: Vec<BookEffect>) {
        for effect in effects {
            match effect {
                BookEffect::Report(event) => (self.events)(event),
                BookEffect::Create(order) => {
                    let (pods, pod) = (self.pods.clone(), self.recipe.pod(&order, &self.owner));
                    self.calls.spawn(async move {
                        let result = called(pods.create(&PostParams::default(), &pod)).await.map(drop);
                        Called::Created { pod: order.pod, result }
                    });
                }
                BookEffect::Delete { pod, at_once } => self.delete(pod, at_once, Duration::ZERO),
            }
        }
    }

    fn delete(&mut self, pod: String, at_once: bool, after: Duration) {
        let pods = self.pods.clone();
        self.calls.spawn(async move {
            sleep(after).await;
            let how = match at_once {
                true => DeleteParams::default().grace_period(0),
                false => DeleteParams::default(),
            };
            let result = called(pods.delete(&pod, &how)).await.map(drop);
            Called::Deleted { pod, at_once, result }
        });
    }

    fn hear(&mut self, called: Called) {
        match called {
            Called::Created { pod, result: Err(Trouble { why, is_final }) } => {
                if is_final {
                    (self.events)(HostEvent::Failed { why: why.clone() });
                }
                let effects = self.book.refused(&pod, format!("its pod is not created: {why}"));
                self.apply(effects);
            }
            // It is there no more, or it may not be deleted: then saying so again and again helps nobody.
            Called::Deleted { result: Err(Trouble { why, is_final: true }), pod, .. } => {
                if self.book.pods().contains(&pod) {
                    self.complain(why);
                }
            }
            Called::Deleted { result: Err(_), pod, at_once } => self.delete(pod, at_once, RETRY),
            Called::Created { result: Ok(()), .. } | Called::Deleted { result: Ok(()), .. } => {}
        }
    }

    /// Deletes all pods, and waits until they are gone.
    async fn close(mut self, done: Option<oneshot::Sender<()>>) {
        let gone = async {
            loop {
                for pod in self.book.pods() {
                    let _ = called(self.pods.delete(&pod, &DeleteParams::default())).await;
                }
                let list = called(self.pods.list(&ListParams::default().labels(&self.selector()))).await;
                match list {
                    Ok(list) => {
                        drop(self.book.listed(list.items.iter().filter_map(view).collect()));
                        if list.items.is_empty() {
                            return;
                        }
                    }
                    // The rights of this process go with its job.
                    Err(Trouble { is_final: true, .. }) => return,
                    Err(_) => {}
                }
                sleep(RETRY / 2).await;
            }
        };
        let _ = timeout(LEAVE_LIMIT, gone).await;
        drop(done);
    }
}

/// How the pods came to be followed no more.
enum Watched {
    Closing(Option<oneshot::Sender<()>>),
    /// Nobody asks for anything any more.
    Left,
    /// The connection has ended, for this reason if it is one.
    Broken(Option<Trouble>),
}
