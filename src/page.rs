//! The page for operators inside a service, behind the service's own login.

use web::{BuildPageError, PageOptions, RelayPage};

use crate::Relay;

impl Relay {
    /// Returns the page for operators about this relay, its outbox, and the keys and sagas in the
    /// same database: a tower service, which shows what is wrong and takes decisions. It has no
    /// login: the service names the operator of each request.
    ///
    /// ```no_run
    /// # #[cfg(all(feature = "kafka", feature = "postgres"))]
    /// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// use outbox_toolkit::{Operator, OperatorRole, PageOptions, Relay};
    ///
    /// /// The user, whom the login of the service leaves in the extensions of a request.
    /// #[derive(Clone)]
    /// struct User {
    ///     name: String,
    ///     is_admin: bool,
    /// }
    ///
    /// let relay = Relay::builder(&pool).kafka(["127.0.0.1:9092"])?.build()?;
    /// let page = relay.page(PageOptions::new("/ops/outbox", |request| {
    ///     let user = request.extensions.get::<User>()?;
    ///     let role = if user.is_admin { OperatorRole::Operator } else { OperatorRole::Viewer };
    ///     Some(Operator::new(&user.name, role))
    /// }))?;
    /// // With axum: Router::new().nest_service(page.prefix(), page.clone()).layer(login)
    /// # Ok(()) }
    /// ```
    ///
    /// The page is independent of the relay: it may be dropped first, and still answers after the
    /// relay has ended. When the relay stops, event streams end, so that a server can shut down.
    ///
    /// # Errors
    /// [`BuildPageError`] describes the invalid option.
    pub fn page(&self, options: PageOptions) -> Result<RelayPage, BuildPageError> {
        Self::page_of([self], options)
    }

    /// Returns one page about several relays of this process, which have different names.
    ///
    /// # Errors
    /// As [`page`](Self::page); also if two relays have the same name.
    pub fn page_of<'a>(
        relays: impl IntoIterator<Item = &'a Self>,
        options: PageOptions,
    ) -> Result<RelayPage, BuildPageError> {
        let relays: Vec<&Self> = relays.into_iter().collect();
        let pipelines = relays.iter().map(|relay| relay.shown.clone()).collect();
        let status = |relay: &&Self| (relay.shown.name.as_str().to_owned(), relay.pipeline.status());
        let stops = relays.iter().map(|relay| relay.stop.clone()).collect();
        RelayPage::new(pipelines, relays.iter().map(status).collect(), stops, options)
    }
}
