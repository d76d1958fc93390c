//! Links to other places: the dashboard, and the runbook.

use form_urlencoded::byte_serialize;
use maud::{Markup, html};
use operate::status::Symptom;

use crate::settings::PageConfig;

/// The runbook of this version.
const RUNBOOK: &str = concat!(
    env!("CARGO_PKG_REPOSITORY"),
    "/blob/v",
    env!("CARGO_PKG_VERSION"),
    "/docs/operations/runbook.md"
);

/// The addresses of other places.
#[derive(Debug, Clone)]
pub(crate) struct Links {
    dashboard: Option<String>,
    runbook: String,
}

impl Links {
    /// Takes the configured addresses; without that of a runbook, this version's.
    pub(crate) fn new(dashboard: Option<String>, runbook: Option<&str>) -> Self {
        let runbook = runbook.unwrap_or(RUNBOOK);
        // The page adds the section.
        let runbook = runbook.split('#').next().unwrap_or_default().to_owned();
        Self { dashboard, runbook }
    }

    /// Takes the addresses from the settings.
    pub(crate) fn of(page: &PageConfig) -> Self {
        Self::new(page.dashboard_url.clone(), page.runbook_url.as_deref())
    }

    /// Renders the link to the dashboard of a pipeline, if one is configured.
    pub(crate) fn dashboard(&self, pipeline: &str) -> Option<Markup> {
        let name: String = byte_serialize(pipeline.as_bytes()).collect();
        // A path does not decode `+`.
        let url = self.dashboard.as_ref()?.replace("{pipeline}", &name.replace('+', "%20"));
        Some(away("Dashboard", &url))
    }

    /// Renders the link to the section of the runbook about a symptom.
    pub(crate) fn what_to_do(&self, symptom: Symptom) -> Markup {
        away("What to do", &format!("{}#{}", self.runbook, symptom.anchor()))
    }

    /// Renders the link to the runbook.
    pub(crate) fn runbook(&self) -> Markup {
        away("Runbook", &self.runbook)
    }
}

#[cfg(test)]
impl Links {
    pub(crate) fn sample() -> Self {
        Self {
            dashboard: Some(String::from("https://graphs/d/relay?var-pipeline={pipeline}")),
            runbook: String::from("https://docs/runbook"),
        }
    }
}

/// Renders a link that reveals nothing about this page to the other site.
fn away(name: &str, url: &str) -> Markup {
    html! { a href=(url) rel="noreferrer noopener" { (name) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_within_its_place_in_the_address() {
        let links = Links::sample();
        let text = links.dashboard("a&b\" c").map(Markup::into_string).unwrap_or_default();
        assert!(text.contains("href=\"https://graphs/d/relay?var-pipeline=a%26b%22%20c\""), "{text}");
        let text = links.what_to_do(Symptom::Paused).into_string();
        assert!(text.contains("href=\"https://docs/runbook#something-is-paused\""), "{text}");
        assert!(text.contains("noreferrer"), "{text}");
        let none = Links { dashboard: None, ..links };
        assert!(none.dashboard("a").is_none());
    }
}
