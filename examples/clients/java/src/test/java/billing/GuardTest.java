package billing;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.sql.DriverManager;
import java.util.Properties;
import javax.net.ssl.SSLHandshakeException;
import org.junit.jupiter.api.Test;
import org.postgresql.Driver;

/** The addresses of both Java clients. */
class GuardTest {
    @Test
    void anAddressKeepsWhatItSays() throws Exception {
        String url = "postgres://ann:a%26b+c%3A&d@db.example:5433/billing?sslmode=verify-full&socketTimeout=7";
        Properties read = Driver.parseURL(Guard.jdbcUrl(url), null);
        assertEquals("db.example", read.getProperty("PGHOST"));
        assertEquals("5433", read.getProperty("PGPORT"));
        assertEquals("billing", read.getProperty("PGDBNAME"));
        assertEquals("ann", read.getProperty("user"));
        assertEquals("a&b+c:&d", read.getProperty("password"));
        assertEquals("verify-full", read.getProperty("sslmode"));
        assertEquals("7", read.getProperty("socketTimeout"));
        assertEquals("true", read.getProperty("tcpKeepAlive"));
        assertEquals("300", Driver.parseURL(Guard.jdbcUrl("postgres://db/b"), null).getProperty("socketTimeout"));
        assertDoesNotThrow(() -> DriverManager.getConnection(ClientTest.URL).close());
    }

    @Test
    void aBrokerOfAnUnknownAuthorityIsRefused() {
        // The trust store of this machine does not have the authority of the test server.
        String url = System.getenv("OUTBOX_RABBITMQ_TLS_URL");
        assertThrows(SSLHandshakeException.class, () -> Guard.broker(url));
    }
}
