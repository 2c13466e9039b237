package writetime.judge;

import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.Map;
import java.util.UUID;

import org.apache.cassandra.db.Mutation;
import org.apache.cassandra.db.partitions.PartitionUpdate;
import org.apache.cassandra.schema.Schema;
import org.apache.cassandra.schema.TableId;
import org.apache.cassandra.schema.TableMetadata;

/**
 * What only Cassandra from 6.0 on has, by its name: earlier versions lack the classes, and the judge is built against each version.
 */
final class Since6
{
    private static final String CLUSTER_METADATA = "org.apache.cassandra.tcm.ClusterMetadataService";

    private Since6() {}

    /** Whether the schema is a part of the cluster's metadata. */
    static boolean isThis()
    {
        try
        {
            Class.forName(CLUSTER_METADATA, false, Since6.class.getClassLoader());
            return true;
        }
        catch (ClassNotFoundException earlier)
        {
            return false;
        }
    }

    /** Cassandra's reader asks for the cluster's metadata: make empty ones. */
    static void initialize() throws ReflectiveOperationException
    {
        if (isThis())
            Class.forName(CLUSTER_METADATA).getMethod("initializeForClients").invoke(null);
    }

    /** Put tables in front of the schema: it is an interface that can be replaced, and knows nothing of these tables. */
    static void teach(Map<UUID, TableMetadata> tables) throws ReflectiveOperationException
    {
        Field instance = Schema.class.getField("instance");
        Object known = instance.get(null);
        Class<?> type = instance.getType();
        instance.set(null, Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] { type }, (proxy, method, arguments) -> {
            if (method.getName().endsWith("TableMetadata") && arguments.length == 1 && arguments[0] instanceof TableId id)
            {
                TableMetadata table = tables.get(id.asUUID());
                if (table != null)
                    return table;
            }
            try
            {
                return method.invoke(known, arguments);
            }
            catch (InvocationTargetException thrown)
            {
                throw thrown.getCause();
            }
        }));
    }

    /** The flags of a mutation, as far as the reader keeps them. */
    static int flags(Mutation mutation)
    {
        return (Boolean) field(call(mutation, "potentialTxnConflicts"), "allowed") ? 1 : 0;
    }

    /** The epoch that an update came with. */
    static long epoch(PartitionUpdate update)
    {
        return (Long) call(field(update, "serializedAtEpoch"), "getEpoch");
    }

    private static Object call(Object object, String method)
    {
        try
        {
            return object.getClass().getMethod(method).invoke(object);
        }
        catch (ReflectiveOperationException error)
        {
            throw new LinkageError(object.getClass().getName() + '.' + method, error);
        }
    }

    private static Object field(Object object, String name)
    {
        try
        {
            return object.getClass().getField(name).get(object);
        }
        catch (ReflectiveOperationException error)
        {
            throw new LinkageError(object.getClass().getName() + '.' + name, error);
        }
    }
}
