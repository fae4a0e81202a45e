//! The source: reads its settings, and hands what is asked for to the task that talks to the API server.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use antdt_core::InvalidValue;
use antdt_core::registry::Settings;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::client::{self, PodCommand, PodPlace};
use super::manifest::{self, PodRecipe};
use super::name::check_name;
use crate::KeeperLimits;
use crate::runtime::source::{HostRequest, HostSource, SourceContext, SourceParts};

/// Variable with the name of the pod that this process is in.
const OWN_POD: &str = "POD_NAME";

/// Reads the settings.
pub(super) fn build(settings: &Settings<'_>) -> Result<SourceParts, InvalidValue> {
    let config = PodSettings::read(settings)?;
    Ok(SourceParts {
        names: |count| Some((0..count).map(|index| format!("host-{index}")).collect()),
        factory: Arc::new(move |context| config.open(context)),
    })
}

/// Settings of the source.
#[derive(Debug, Clone)]
struct PodSettings {
    job: String,
    template: PathBuf,
    endpoint: Option<String>,
    namespace: Option<String>,
}

impl PodSettings {
    fn read(settings: &Settings<'_>) -> Result<Self, InvalidValue> {
        let text = |name| settings.value(name, String::new(), "a text");
        let job = text("job")?;
        check_name("job", &job).map_err(|error| settings.refuse("job", &job, &error.expected))?;
        let template = text("template")?;
        if template.is_empty() {
            return Err(settings.refuse(
                "template",
                template,
                "the path of a file with the template of a pod",
            ));
        }
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        let (endpoint, namespace) = (some(text("endpoint")?), some(text("namespace")?));
        Ok(Self { job, template: template.into(), endpoint, namespace })
    }

    fn open(&self, context: SourceContext) -> Result<Box<dyn HostSource>, InvalidValue> {
        let refused = |expected: String| {
            InvalidValue::new("[host-source.kubernetes] template", self.template.display(), expected)
        };
        let text = std::fs::read_to_string(&self.template)
            .map_err(|error| refused(format!("a file that can be read ({error})")))?;
        let template =
            manifest::template(&text).map_err(|error| refused(format!("the template of a pod ({error})")))?;
        let own_pod = std::env::var(OWN_POD).or_else(|_| std::env::var("HOSTNAME")).unwrap_or_default();
        let SourceContext { endpoint, secret, events } = context;
        let recipe = PodRecipe {
            job: self.job.clone(),
            template,
            endpoint: self.endpoint.clone().unwrap_or(endpoint),
            secret: secret.map(|file| file.display().to_string()),
        };
        let place = PodPlace { namespace: self.namespace.clone(), own_pod };
        let (commands, inbox) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(client::serve(recipe, place, inbox, events));
        Ok(Box::new(KubePods { commands, tasks }))
    }
}

/// See the module.
#[derive(Debug)]
struct KubePods {
    commands: mpsc::UnboundedSender<PodCommand>,
    /// It ends with this value; the pods end with their owner then.
    tasks: JoinSet<()>,
}

impl HostSource for KubePods {
    fn limits(&self) -> KeeperLimits {
        KeeperLimits {
            patience: Duration::from_secs(2),
            start: Duration::from_secs(60),
            // A node that is lost says nothing, and Kubernetes waits for minutes: the job does not.
            away: Duration::from_secs(10),
        }
    }

    fn asked(&self) -> &'static str {
        "Kubernetes is asked for a pod"
    }

    fn start(&mut self, host: &HostRequest) {
        // If the task is gone, the job has been told why.
        let _ = self.commands.send(PodCommand::Start(host.clone()));
    }

    fn stop(&mut self, name: &str) {
        let _ = self.commands.send(PodCommand::Stop(name.to_owned()));
    }

    fn close(mut self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let (done, closed) = oneshot::channel();
            if self.commands.send(PodCommand::Close(done)).is_ok() {
                let _ = closed.await;
            }
            self.tasks.shutdown().await;
        })
    }
}
